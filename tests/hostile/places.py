"""Fixtures: every HTTP server, started once for a module; and a request to each that is answered with 200."""

import os
import re
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rollbus.local.process.ports import find_free_port, is_free
from rollbus.runtime.health.server import MetricsServer
from rollbus.ui.door import page_token
from tests.console import ROLLBUS
from tests.hostile.doors import BEARER, JSON, TOKEN, Place, basic, command
from tests.services.art.fixtures import ArtServer, Launcher
from tests.services.endpoint.guarded_endpoint import Guarded

MIB = 1 << 20
CHAT = b'{"model": "agent", "messages": [{"role": "user", "content": "choose"}], "max_tokens": 1}'


@pytest.fixture(scope="module")
def grpc_port() -> int:
    """Where `ingest serve` of `places` speaks gRPC."""
    return find_free_port()


@pytest.fixture(scope="module")
def places(
    grpc_port: int,
    art_launcher: Launcher,
    art_base_model: Path,
    guarded: Guarded,
    kafka: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[list[Place]]:
    """All servers but the worker's, which lives in the test's loop."""
    folder = tmp_path_factory.mktemp("doors")
    art = ArtServer(art_launcher, art_base_model, folder / "art", options={"token": TOKEN})
    reader, owner = basic("readonly", guarded.reader_password), basic("default", guarded.password)
    wrong = {"authorization": "Bearer wrong"}
    with ExitStack() as stack:
        art.start()
        stack.callback(art.stop)
        proxy = find_free_port()
        upstream = ["--upstream", art.model_url, "--port", str(proxy)]
        stack.enter_context(command(folder, "proxy", "run", *upstream, ROLLBUS_KAFKA__BOOTSTRAP_SERVERS="127.0.0.1:1"))
        bus = {"ROLLBUS_KAFKA__BOOTSTRAP_SERVERS": kafka, "ROLLBUS_NAMESPACE": f"{folder.name}."}
        stored = {"ROLLBUS_CLICKHOUSE__PORT": str(guarded.port)}
        line = stack.enter_context(command(folder, "ui", "--port", "0", **bus, **stored))
        page = int(re.search(r":(\d+)/", line)[1])  # type: ignore[index]
        ingest = find_free_port()
        subprocess.run([ROLLBUS, "topics", "create"], cwd=folder, env=os.environ | bus, check=True, capture_output=True)
        ports = ["--port", str(ingest), "--grpc-port", str(grpc_port)]
        stack.enter_context(command(folder, "ingest", "serve", *ports, **bus))
        while is_free(proxy) or is_free(ingest):
            time.sleep(0.1)
        reading = {"authorization": f"Bearer {page_token(TOKEN)}"}
        chat: dict[str, Any] = {"path": "/v1/chat/completions", "method": "POST", "headers": JSON, "body": CHAT}
        spans: dict[str, Any] = {"path": "/v1/traces", "method": "POST", "headers": JSON, "body": b"{}"}
        sql: dict[str, Any] = {"method": "POST", "body": b"SELECT 1", "checks_kind": False, "refused": 403}
        art.require_running()
        yield [
            Place("model", art.model_port, credentials=BEARER, wrong=wrong, most=32 * MIB, **chat),
            Place("control", art.control_port, "/rollbus/v1/versions", BEARER, wrong, most=512 * MIB),
            Place("batches", art.control_port, credentials=BEARER, wrong=wrong, most=512 * MIB, **chat),
            Place("proxy", proxy, credentials=BEARER, wrong=wrong, most=64 * MIB, **chat),
            Place("ingest", ingest, credentials=BEARER, wrong=wrong, most=32 * MIB, compressed=413, **spans),
            Place("page", page, "/api/health", reading, wrong),
            Place("owner", guarded.port, "/", owner, basic("default", "wrong"), most=256 * MIB, **sql),
            Place("reader", guarded.port, "/", reader, basic("readonly", "wrong"), most=MIB, **sql),
        ]
        art.require_running()


@pytest.fixture
async def all_places(places: list[Place]) -> AsyncIterator[list[Place]]:
    worker = MetricsServer("127.0.0.1", 0, metrics=lambda: "up 1\n", live=lambda: None, token=TOKEN)
    port = await worker.start()
    yield [*places, Place("metrics", port, "/metrics", BEARER, {"authorization": "Bearer wrong"})]
    await worker.stop()
