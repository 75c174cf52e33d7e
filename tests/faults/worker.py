"""A worker of the real stages that can be told to die at a point: `python worker.py <servers> <namespace> <JSON>`.

The JSON holds settings of the worker and, for the fault: `die` (a point), `nth` (at the how manyth time), `freeze`
(stand still there, as by SIGSTOP), `slow` (a stage, its partition, and seconds for each batch), `clock_shift_s` (how
wrong its wall clock is), `stages` and `configs` (the functions that make them and their configurations, `module:name`).
"""

import asyncio
import json
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


class Death:
    """Ends the process hard, or freezes it, when it is asked for the nth time."""

    def __init__(self, nth: int, *, freeze: bool = False) -> None:
        self._calls_left, self._signal = nth, signal.SIGSTOP if freeze else signal.SIGKILL

    def due(self) -> bool:
        """Count; True when it is time."""
        self._calls_left -= 1
        return self._calls_left == 0

    def now(self) -> None:
        """End as by kill -9, or stand still until SIGCONT."""
        os.kill(os.getpid(), self._signal)


def in_write(death: Death, *, half: bool) -> None:
    """Die before a transaction's records are sent, or with half of them sent."""
    transaction: Any = import_module("rollbus.streams.exactly_once.transaction")
    write = transaction.write

    async def dying(producer: Any, rows: Any) -> None:
        rows = list(rows)
        if death.due():
            await write(producer, rows[: len(rows) // 2 if half else 0])
            death.now()
        await write(producer, rows)

    transaction.write = dying


def in_commit(death: Death, *, after_s: float | None) -> None:
    """Die when all is sent but not committed, or so long after the commit was begun."""
    transaction: Any = import_module("rollbus.streams.exactly_once.transaction")
    new_producer = transaction.new_producer

    def dying(*arguments: Any) -> Any:
        producer = new_producer(*arguments)
        commit = producer.commit_transaction

        async def commit_or_die() -> None:
            if not death.due():
                await commit()
                return
            if after_s is not None:
                running = asyncio.ensure_future(commit())
                await asyncio.wait([running], timeout=after_s)
            death.now()
            if after_s is None:
                await commit()  # it was frozen, and goes on

        producer.commit_transaction = commit_or_die
        return producer

    transaction.new_producer = dying


def in_restore(death: Death) -> None:
    """Die with part of the changelog read."""
    from rollbus.streams.exactly_once import changelog

    restore = changelog.restore

    async def dying(reading: Any, topic: str, partition: int, apply: Callable[..., None]) -> Any:
        def apply_or_die(key: bytes, value: bytes | None) -> None:
            if death.due():
                death.now()
            apply(key, value)

        return await restore(reading, topic, partition, apply_or_die)

    changelog.restore = dying


def in_rebalance(death: Death, signal_name: str) -> None:
    """Die when partitions are taken away, or given."""
    from rollbus.streams.worker.app import StageApp

    original = getattr(StageApp, signal_name)

    async def dying(self: Any, app: Any, partitions: Any, **others: Any) -> None:
        if partitions and death.due():
            death.now()
        await original(self, app, partitions, **others)

    setattr(StageApp, signal_name, dying)


POINTS: dict[str, Callable[[Death], None]] = {
    "before_send": lambda death: in_write(death, half=False),
    "half_sent": lambda death: in_write(death, half=True),
    "before_commit": lambda death: in_commit(death, after_s=None),
    "during_commit": lambda death: in_commit(death, after_s=0.002),
    "after_commit": lambda death: in_commit(death, after_s=5.0),
    "restore": in_restore,
    "revoked": lambda death: in_rebalance(death, "_revoked"),
    "assigned": lambda death: in_rebalance(death, "_assigned"),
}


def slow_down(stage: str, partition: int, pause_s: float) -> None:
    """Let a partition of a stage take its time for each batch."""
    from rollbus.streams.exactly_once.runner import Runner

    run_batch = Runner._run_batch

    async def slow(self: Any, batch: Any) -> None:
        if (self.metrics.stage, self.partition.partition) == (stage, partition):
            await asyncio.sleep(pause_s)
        await run_batch(self, batch)

    setattr(Runner, run_batch.__name__, slow)


def shift_clock(shift_s: float) -> None:
    """Let this process's wall clock be wrong."""
    right = time.time
    time.time = lambda: right() + shift_s


def allow_files_of(size: int) -> None:
    """Let no file grow beyond so many bytes, as on a full disk; this process's log is one."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def call(place: str) -> Any:
    """Call the function at `module:name`."""
    module, _, function = place.partition(":")
    return getattr(import_module(module), function)()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    changes = json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}
    shift_clock(changes.pop("clock_shift_s", 0.0))
    from rollbus.streams.worker.worker import run_worker
    from tests.services.streams.fixtures import stream_settings

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    if (file_bytes := changes.pop("file_bytes", None)) is not None:
        allow_files_of(file_bytes)
    if (slow := changes.pop("slow", None)) is not None:
        slow_down(*slow)
    point, nth, freeze = changes.pop("die", None), changes.pop("nth", 1), changes.pop("freeze", False)
    if point is not None:
        POINTS[point](Death(nth, freeze=freeze))
    stages = call(changes.pop("stages", "tests.faults.episodes:pipeline"))
    configs = call(changes.pop("configs", "builtins:list"))
    run_worker(stream_settings(sys.argv[1], sys.argv[2], **changes), stages, configs)
