"""A worker process: any number of stages, the ticker, the watchdog and the metrics, until it is stopped.

SIGTERM and SIGINT end it cleanly with status 0; it raises an error that an operator must look at.
"""

import asyncio
import itertools
import logging
import os
import signal
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from rollbus.runtime.health.alarms.stall import StandstillWatch
from rollbus.runtime.health.heart import Heart, Report, beating
from rollbus.runtime.kafka.payload import KafkaPayload
from rollbus.runtime.tasks import start_task
from rollbus.schemas.errors import ConfigurationError, RunStoppedError, UnavailableError
from rollbus.schemas.records.control import ConfigApplied
from rollbus.streams.exactly_once.metrics import prometheus_text
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics_on_broker import require_partitions, require_topics
from rollbus.streams.state.payload import bind_payload
from rollbus.streams.worker.app import StageApp
from rollbus.streams.worker.end_offsets import EndOffsets
from rollbus.streams.worker.process import prepare_process
from rollbus.streams.worker.reports import TickReporter
from rollbus.streams.worker.ticker import Ticker
from rollbus.streams.worker.ticker_log import require_owner_key
from rollbus.streams.worker.watchdog import Watchdog

logger = logging.getLogger(__name__)

TICKING_STAGE = "assembly"
"""The ticker runs in the worker that owns this stage's partition 0."""
CHECK_S = 1.0
PARTITIONS_CHECK_S = 10.0
"""How often the number of partitions is checked: if it changes, keys that belong together no longer meet."""
IDLE_S = 3.0
"""So long after the last record the stages ask for the next one seldom; the first one lets all of them ask often."""
IDLE_WAIT_MS = 6_000
"""How long the broker holds a fetch of an idle stage: it answers at once if a record comes, and a tick does before."""
IDLE_CHECKS = 5
"""Of so many checks one asks where the inputs end, while nothing comes."""
STOP_S = 2.5
"""A stop that takes longer is cut off, which loses nothing."""
GIVE_UP_S = 10.0


def run_worker(
    settings: StreamSettings,
    stages: Sequence[Any],
    configs: Sequence[ConfigApplied] = (),
    *,
    app_version: str = "",
    heart: Heart | None = None,
) -> None:
    """Run the stages until SIGTERM or SIGINT; raises an error that an operator must look at."""
    prepare_process()
    asyncio.run(_until_signal(settings, stages, configs, app_version, heart))


async def _until_signal(
    settings: StreamSettings,
    stages: Sequence[Any],
    configs: Sequence[ConfigApplied],
    app_version: str,
    heart: Heart | None,
) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def ask_to_stop() -> None:
        if not stop.is_set():
            loop.call_later(STOP_S, os._exit, 0)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask_to_stop)
    await serve(settings, stages, configs, stop=stop, app_version=app_version, heart=heart)


async def serve(
    settings: StreamSettings,
    stages: Sequence[Any],
    configs: Sequence[ConfigApplied] = (),
    *,
    stop: asyncio.Event,
    app_version: str = "",
    heart: Heart | None = None,
    on_ready: Callable[["Worker"], None] = lambda worker: None,
) -> None:
    """Run the stages until `stop` is set; raises the error that ended one of them, ConfigurationError at the start."""
    await require_topics(settings, stages)
    await require_owner_key(settings)
    worker = Worker(settings, stages, configs, app_version=app_version)
    try:
        await worker.start()
        on_ready(worker)
        async with beating(heart, worker.report, live=worker.describe_stall, own_metrics=worker.metrics_text):
            await worker.wait(stop)
    finally:
        try:
            await asyncio.wait_for(worker.stop(), GIVE_UP_S)
        except TimeoutError:
            logger.error("the worker could not stop in %.0f s; a new one takes over from what is committed", GIVE_UP_S)


class Worker:
    """The parts of a worker process, started and stopped together."""

    def __init__(
        self,
        settings: StreamSettings,
        stages: Sequence[Any],
        configs: Sequence[ConfigApplied] = (),
        *,
        app_version: str = "",
    ) -> None:
        self._settings = settings
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        process_id = uuid.uuid4().hex
        self.ticker = Ticker(settings, configs, on_fatal=self._fail, runs_here=self._open_partitions)
        _refuse_without_ticks(stages, self.ticker)
        self._reporter = TickReporter(settings, process_id, on_fatal=self._fail)
        self._payload = KafkaPayload(settings.kafka, settings.namespace)
        bind_payload(stages, self._payload)
        self.apps = [
            StageApp(
                stage,
                settings,
                on_fatal=self._fail,
                on_partitions=self._tick_with_partition_0 if stage.name == TICKING_STAGE else lambda partitions: None,
                on_tick=self._note_tick,
                app_version=app_version,
                process_id=process_id,
            )
            for stage in stages
        ]
        self._ends = EndOffsets(settings)
        self._progress = StandstillWatch(settings.stalled_s)
        self._watchdog = Watchdog(settings.stalled_s)
        self._tasks: list[asyncio.Task[None]] = []
        self._stalled: list[str] = []
        self._busy_at_s = time.monotonic()
        self._is_patient = False

    async def start(self) -> None:
        """Join the groups; partitions open in the background."""
        await self._ends.start()
        self._reporter.set_running(True)
        await asyncio.gather(*(app.start() for app in self.apps))
        self._watchdog.start()
        self._tasks.append(start_task(self._check_for_ever(), "watchdog", on_end=self._fail))
        self._tasks.append(start_task(self._check_partitions(), "partition counts", on_end=self._fail))
        logger.info("worker runs stages %s", [app.stage.name for app in self.apps])

    async def wait(self, stop: asyncio.Event) -> None:
        """Return when `stop` is set; raise the error that ended a stage."""
        stopping = asyncio.create_task(stop.wait())
        either: list[asyncio.Future[Any]] = [stopping, self._failed]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self._failed.done():
                self._failed.result()
        finally:
            stopping.cancel()

    async def stop(self) -> None:
        """Finish running transactions, leave the groups, end."""
        self._watchdog.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(self.ticker.stop(), *(app.stop() for app in self.apps))
        await self._reporter.stop()  # not before: a stage that gives its partitions back may start it
        await self._ends.stop()
        await self._payload.close()

    def metrics_text(self) -> str:
        """Return every partition's counters for Prometheus."""
        return prometheus_text(runner.metrics for app in self.apps for runner in app.runners.values())

    def report(self) -> Report:
        """Say what this worker holds, where it is, and what has waited longest without moving."""
        runners = [runner for app in self.apps for runner in app.runners.values()]
        names = {f"{runner.metrics.stage}[{runner.metrics.partition}]": runner for runner in runners}
        now_s = time.monotonic()
        waits = (self._progress.longest_wait(now_s=now_s), self.ticker.longest_hold(now_s=now_s))
        troubles = [f"{name}: {runner.trouble}" for name, runner in names.items() if runner.trouble]
        return Report(
            holds=tuple(names),
            positions={name: runner.metrics.position for name, runner in names.items()},
            work=sum(runner.metrics.records for runner in runners),
            waits=max(filter(None, waits), key=lambda wait: wait[1], default=None),
            trouble="; ".join(troubles) or None,
        )

    def describe_stall(self) -> str | None:
        """Say which parts are stalled; None if none is."""
        return "; ".join(self._stalled) or None

    def _fail(self, error: BaseException) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)

    def _tick_with_partition_0(self, partitions: frozenset[int]) -> None:
        self.ticker.set_active(0 in partitions)
        self._reporter.set_running(0 not in partitions)

    def _note_tick(self, stage: str, partition: int, tick: int, is_busy: bool) -> None:
        self.ticker.note(stage, partition, tick, is_busy=is_busy)
        self._reporter.note(stage, partition, tick, is_busy=is_busy)
        if is_busy:
            self._busy_at_s = time.monotonic()
            self._set_patience()

    def _set_patience(self) -> None:
        """Ask the broker seldom while nothing comes."""
        if any(not runner.ready for app in self.apps for runner in app.runners.values()):
            self._busy_at_s = time.monotonic()  # what is opened has not been asked for yet
        is_patient = time.monotonic() > self._busy_at_s + IDLE_S
        if is_patient != self._is_patient:
            self._is_patient = is_patient
            for app in self.apps:
                app.set_patience(IDLE_WAIT_MS if is_patient else None)

    def _open_partitions(self) -> set[tuple[str, int]]:
        runners = (runner for app in self.apps for runner in app.runners.values())
        return {(runner.metrics.stage, runner.metrics.partition) for runner in runners}

    async def _check_for_ever(self) -> None:
        for check in itertools.count():
            await asyncio.sleep(CHECK_S)
            self._watchdog.beat()
            self._set_patience()
            for app in self.apps:
                if app.crashed is not None:
                    self._fail(RunStoppedError(f"Faust ended stage {app.stage.name}: {app.crashed!r}"))
            if self._is_patient and check % IDLE_CHECKS:
                continue
            self._stalled = self._progress.observe(await self._progress_of_parts(), now_s=time.monotonic())
            self._watchdog.judge(self._stalled)

    async def _check_partitions(self) -> None:
        while True:
            try:
                stages = [app.stage for app in self.apps]
                await require_partitions(self._settings, stages, every_s=PARTITIONS_CHECK_S)
            except UnavailableError as error:
                logger.warning("partitions cannot be counted now: %s", error)
                await asyncio.sleep(PARTITIONS_CHECK_S)
            except ConfigurationError as error:
                self._fail(error)
                return

    async def _progress_of_parts(self) -> list[tuple[str, int | str, bool]]:
        runners = [runner for app in self.apps for runner in app.runners.values()]
        ends = await self._ends.read_ends([runner.partition for runner in runners])
        places: list[tuple[str, int | str, bool]] = []
        if self.ticker.is_active:
            places.append(("ticker", self.ticker.last.number if self.ticker.last else -1, True))
        for runner in runners:
            end = ends.get(runner.partition)
            if end is not None and runner.is_position_known:
                runner.metrics.lag = max(0, end - runner.metrics.position)
            behind = runner.has_work or runner.metrics.lag > 0
            places.append((f"stage {runner.metrics.stage}[{runner.metrics.partition}]", runner.progress_mark, behind))
        return places


def _refuse_without_ticks(stages: Sequence[Any], ticker: Ticker) -> None:
    """Raise ConfigurationError for a stage whose input gets no tick: early records would wait in it for ever."""
    topics = {hop.topic for hop in ticker.watermarks.hops}
    for stage in stages:
        if stage.input not in topics:
            raise ConfigurationError(
                f"stage {stage.name} reads {stage.input.name}, which gets no ticks: no configuration names the stage; "
                "start the worker with those of all stages"
            )
