"""What the runners of a process have passed, told to the ticker in another process through its changelog.

A worker that has the ticker and every partition needs neither of these; its runners tell the ticker in memory.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from rollbus.runtime.cancelling import is_being_cancelled
from rollbus.runtime.kafka.clients import new_producer, running
from rollbus.runtime.kafka.reading import assign_paused, open_reader, read_bounds
from rollbus.runtime.kafka.writing import write
from rollbus.runtime.tasks import OnEnd, report_end, start_task
from rollbus.schemas.errors import UnavailableError
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.state.watermarks import Passed
from rollbus.streams.worker.ticker_log import TickerLog, is_report, read_report

logger = logging.getLogger(__name__)

TOGETHER_S = 0.05
"""How long a report waits for other partitions that pass a tick at the same time."""
RETRY_S = 1.0
POLL_MS = 1_000
WAIT_MS = 500
"""How long the broker may hold a fetch that finds no report."""
_TROUBLE = (KafkaError, UnavailableError, TimeoutError, OSError)


class _Loop:
    """A task that runs while it is needed, and begins again after trouble with the broker."""

    def __init__(self, name: str, on_fatal: OnEnd) -> None:
        self._name, self._on_fatal = name, on_fatal
        self._task: asyncio.Task[None] | None = None

    def set_running(self, should_run: bool) -> None:
        """Begin, or end, in the background."""
        if should_run and self._task is None:
            self._task = start_task(self._run_for_ever(), self._name, on_end=self._on_fatal)
        elif not should_run and self._task is not None:
            self._task.cancel()
            self._task = None

    async def stop(self) -> None:
        """End, and wait for it."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _run_for_ever(self) -> None:
        while True:
            try:
                await self._run()
            except _TROUBLE as error:
                logger.warning("%s failed, trying again in %.0f s error=%r", self._name, RETRY_S, error)
            except BaseException as error:
                if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                    raise
                logger.error("%s failed, trying again in %.0f s", self._name, RETRY_S, exc_info=error)
            await asyncio.sleep(RETRY_S)

    async def _run(self) -> None:
        raise NotImplementedError


class TickReporter(_Loop):
    """Writes what this process has passed, while another one has the ticker."""

    def __init__(self, settings: StreamSettings, process: str, *, on_fatal: OnEnd = report_end) -> None:
        super().__init__("report of ticks", on_fatal)
        self._settings, self._log, self._process = settings, TickerLog(settings), process
        self._passed: Passed = {}
        self._busy = False
        self._has_moved = asyncio.Event()

    def note(self, stage: str, partition: int, tick: int, *, is_busy: bool) -> None:
        """Take note that a stage has committed what it made of its records before a tick."""
        ticks = self._passed.setdefault(stage, {})
        ticks[partition] = max(tick, ticks.get(partition, tick))
        self._busy = self._busy or is_busy
        self._has_moved.set()

    async def _run(self) -> None:
        await self._has_moved.wait()
        async with running(self._settings.kafka, new_producer(self._settings.kafka)) as producer:
            try:
                while True:
                    await self._has_moved.wait()
                    await asyncio.sleep(TOGETHER_S)
                    self._has_moved.clear()
                    busy, self._busy = self._busy, False
                    await write(producer, [self._log.report_row(self._process, self._passed, is_busy=busy)])
            finally:
                self._has_moved.set()  # what was not written is written by the next attempt


class TickReportReader(_Loop):
    """Reads what other processes have passed."""

    def __init__(
        self, settings: StreamSettings, note: Callable[[Passed, bool], None], *, on_fatal: OnEnd = report_end
    ) -> None:
        super().__init__("reading of reports", on_fatal)
        self._settings, self._note = settings, note
        self._place = TopicPartition(TickerLog(settings).topic, 0)

    async def _run(self) -> None:
        async with open_reader(self._settings.kafka, self._name, fetch_max_wait_ms=WAIT_MS) as consumer:
            assign_paused(consumer, [self._place])
            begin, _ = (await read_bounds(consumer, [self._place]))[self._place]
            consumer.seek(self._place, begin)
            consumer.resume(self._place)
            while True:
                fetched: dict[Any, list[Any]] = await consumer.getmany(self._place, timeout_ms=POLL_MS)
                for row in (row for rows in fetched.values() for row in rows):
                    if is_report(row.key) and row.value is not None:
                        with suppress(ValueError):
                            self._note(*read_report(row.value))
