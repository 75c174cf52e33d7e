"""`rollbus ingest serve` without its process: both servers in the test's loop, over a sink in memory."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rollbus.producers.imports.collector import TraceCollector
from rollbus.producers.imports.formats.formats import FORMATS
from rollbus.producers.imports.grpc_server import serving_grpc
from rollbus.producers.imports.http import make_app, make_door
from rollbus.producers.imports.sending import Sender, TraceConverter
from rollbus.producers.imports.store import Store
from rollbus.producers.sending.sink import MemorySink
from rollbus.runtime.http.server import make_server
from rollbus.schemas.records.events import EpisodeStarted, Event, TurnRecorded

HOST, TOKEN = "127.0.0.1", "only-for-this-test"


class Served:
    """Where it listens, and what it sent."""

    def __init__(self, collector: TraceCollector, http_port: int, grpc_port: int) -> None:
        self.collector, self.sink = collector, MemorySink()
        self.http, self.grpc = f"http://{HOST}:{http_port}", f"{HOST}:{grpc_port}"
        self.headers = {"authorization": f"Bearer {TOKEN}"}

    async def events(self) -> list[Event]:
        """Send what is whole, and return all that was sent."""
        await self.collector.send_due(Sender(lambda: self.sink))
        return list(self.sink.records())

    async def turns(self) -> list[TurnRecorded]:
        return [event for event in await self.events() if isinstance(event, TurnRecorded)]

    async def started(self) -> list[EpisodeStarted]:
        return [event for event in await self.events() if isinstance(event, EpisodeStarted)]


@asynccontextmanager
async def serving(folder: Path, **options: Any) -> AsyncIterator[Served]:
    store = Store(folder / "otlp.sqlite", **options)
    collector = TraceCollector(store=store, converter=TraceConverter(format=FORMATS["otlp"]), settle_ms=0, quiet_ms=0)
    http_server = make_server(make_app(collector), make_door(HOST, TOKEN), host=HOST, port=0)
    running = asyncio.create_task(http_server.serve())
    try:
        while not http_server.started:  # noqa: ASYNC110 - uvicorn has nothing to wait for
            await asyncio.sleep(0.01)
        (listening,) = http_server.servers
        async with serving_grpc(collector, HOST, 0, TOKEN) as grpc_port:
            yield Served(collector, listening.sockets[0].getsockname()[1], grpc_port)
    finally:
        http_server.should_exit = True
        await running
        store.close()


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path) as server:
        yield server
