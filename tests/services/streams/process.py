"""Worker processes and in-process workers for the stream tests, started and ended with care."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from rollbus.schemas.records.control import ConfigApplied
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.worker.worker import Worker, serve
from tests.services.streams.fixtures import read_drops
from tests.waiting import many, until, until_found

SCRIPT = Path(__file__).with_name("worker.py")
WAIT_S = 240.0


class WorkerProcess:
    """A worker in a process of its own, so that it can be killed."""

    def __init__(self, settings: StreamSettings, log: Path, *, script: Path = SCRIPT, **changes: Any) -> None:
        self._command = [
            sys.executable,
            str(script),
            settings.kafka.bootstrap_servers,
            settings.namespace,
            json.dumps(changes),
        ]
        self._log = log
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(*self._command, stdout=log, stderr=log)

    async def until_open(self) -> None:
        """Wait until it works on a partition; a second one may never get any."""
        await until(lambda: " open id=" in self.log(), "the worker opens no partition")

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    async def ended(self) -> int:
        """Wait for the end; return the exit status."""
        assert self._process is not None
        return await asyncio.wait_for(self._process.wait(), WAIT_S)

    async def frozen(self) -> None:
        """Wait until it stands still by a signal."""
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/stat")
        await until(lambda: status.read_text().rpartition(")")[2].split()[0] == "T", "the worker does not freeze")

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    def log(self) -> str:
        return self._log.read_text()


@asynccontextmanager
async def running(
    settings: StreamSettings, stages: Sequence[Any], configs: Sequence[ConfigApplied] = ()
) -> AsyncIterator[Worker]:
    """A worker in this process, until the block ends; raises what ended it before."""
    stop = asyncio.Event()
    ready: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(settings, stages, configs, stop=stop, on_ready=ready.set_result))
    either: list[asyncio.Future[Any]] = [task, ready]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    try:
        if task.done():
            await task
        yield ready.result()
    finally:
        stop.set()
        await task


async def until_ended(settings: StreamSettings, stages: Sequence[Any]) -> None:
    """A worker in this process that nobody stops; raises what ended it."""
    async with asyncio.timeout(WAIT_S):
        await serve(settings, stages, stop=asyncio.Event())


async def until_counted(settings: StreamSettings, events: int) -> list[Any]:
    """Wait until the counting stage has answered so many events; return its answers."""
    look = partial(read_drops, settings)
    return await until_found(look, f"{events} events are not answered", is_enough=many(events), every_s=0.3)


def check_exactly_once(drops: Sequence[Any], keys: Sequence[str], per_key: int) -> None:
    """Each event answered once, and each key's count as if one worker had never been disturbed."""
    expected = {(f"{key}/{n}", f"{key}:{n + 1}") for key in keys for n in range(per_key)}
    counted = [(drop.unit_id, drop.detail) for drop in drops]
    assert len(counted) == len(set(counted)) == len(expected)
    assert set(counted) == expected
