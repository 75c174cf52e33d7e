"""Write ticks and changed configurations into every partition of every stage's input, each as soon as it may have them.

A tick waits for the stages that write into an input (`watermarks`). Each transaction also writes into the ticker's own
changelog, so a successor continues where this one stopped. Of two tickers the newer fences the older, which waits for a
session timeout and then tries again.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress

from aiokafka import AIOKafkaProducer
from aiokafka.errors import InvalidProducerEpoch, KafkaError, ProducerFenced

from rollbus.runtime.cancelling import is_being_cancelled
from rollbus.runtime.kafka.clients import start_uncancelled, stop_producer
from rollbus.runtime.kafka.writing import Row, write_transaction
from rollbus.runtime.tasks import OnEnd, report_end, start_task
from rollbus.schemas.codec import encode
from rollbus.schemas.errors import UnavailableError
from rollbus.schemas.records.control import ConfigApplied, Tick
from rollbus.schemas.signing import OWNER
from rollbus.schemas.topics import Topic
from rollbus.schemas.wall_clock import wall_clock_ms
from rollbus.streams.exactly_once.transaction import new_producer
from rollbus.streams.kafka import names
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics import partitions_of
from rollbus.streams.state.table import NO_TICK
from rollbus.streams.state.ticker import Pace, Pulse, config_changes, next_tick, removed_runs
from rollbus.streams.state.watermarks import Hop, Watermarks, hops
from rollbus.streams.worker.reports import TickReportReader
from rollbus.streams.worker.ticker_log import TickerLog

logger = logging.getLogger(__name__)

RETRY_S = 1.0
CLOSE_S = 2.0
NONCE_BYTES = 16
"""As many as no producer guesses: the draw of a canary is keyed with them."""
MOST_ROWS = 10_000
"""Of one transaction: what a stage that was down makes up for must not hold back readers for long."""
TOGETHER_S = 0.01
"""How long a tick waits for other partitions that pass it at the same time."""
HELD_S = 15.0
"""An input that gets no tick for longer is shown: even an idle one has them more often."""


class Ticker:
    """The ticker of a namespace, while this process owns the partition that decides who ticks."""

    def __init__(
        self,
        settings: StreamSettings,
        configs: Sequence[ConfigApplied] = (),
        *,
        on_fatal: OnEnd = report_end,
        runs_here: Callable[[], Collection[tuple[str, int]]] = lambda: (),
    ) -> None:
        """`runs_here` names the stages and partitions that report to this ticker in memory."""
        self._settings, self._configs, self._runs_here = settings, configs, runs_here
        self._on_fatal = on_fatal
        self._log = TickerLog(settings)
        self._active = asyncio.Event()
        self._writing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self.last: Tick | None = None
        self.watermarks = Watermarks(hops(configs), lambda topic: partitions_of(topic, settings))
        self._pulses: list[Pulse] = []
        """Those that some input does not have yet."""
        self._has_moved = asyncio.Event()
        self._pace = Pace(settings.tick_interval_ms / 1000)
        self._moved_at_s: dict[str, float] = {}
        """By topic: when it got its last tick."""
        self._applied: dict[str, str] = {}
        self._removed: dict[str, list[str]] = {}
        """Runs that are no longer in the settings, and the places of their configurations: the next tick says so."""
        self._old_reports: tuple[str, ...] = ()
        """Processes whose reports were there at the start; those that still run write theirs again."""
        self._reports = TickReportReader(settings, self._note_report, on_fatal=on_fatal)
        list(config_changes(configs, {}))  # raises for a wrong one

    @property
    def is_active(self) -> bool:
        """Whether this process should tick."""
        return self._active.is_set()

    def set_active(self, should_tick: bool) -> None:
        """Tick from now on, or stop after the tick that is being written."""
        if not should_tick:
            self._active.clear()
            return
        self._active.set()
        if self._task is None:
            self._task = start_task(self._main(), "ticker", on_end=self._on_fatal)

    def note(self, stage: str, partition: int, tick: int, *, is_busy: bool) -> None:
        """Take note that a stage has committed what it made of its records before a tick."""
        self.watermarks.note(stage, partition, tick)
        self._note_work(is_busy=is_busy)

    def longest_hold(self, *, now_s: float) -> tuple[str, float] | None:
        """Return which partition holds up time in which input, and for how many seconds; None if nothing does."""
        if self.last is None or not self.is_active:
            return None
        holds = []
        for hop in self.watermarks.hops:
            name, holder = hop.topic.name, self.watermarks.holder(hop)
            seconds = now_s - self._moved_at_s.get(name, now_s)
            if holder is not None and holder.tick < self.last.number and seconds >= HELD_S:
                at = f"at tick {holder.tick}" if holder.tick > NO_TICK else "before its first tick"
                holds.append((f"time in {name} for {holder.stage}[{holder.partition}] {at}", seconds))
        return max(holds, key=lambda pair: pair[1], default=None)

    async def stop(self) -> None:
        """Stop ticking; a tick that is being written may end, since it would hold back the readers of every input."""
        task, self._task = self._task, None
        if task is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._writing.acquire(), CLOSE_S)
            task.cancel()
            await asyncio.wait([task])
        await self._reports.stop()

    async def _main(self) -> None:
        while True:
            await self._active.wait()
            pause = RETRY_S
            producer = new_producer(self._settings, names.ticker_id(self._settings.namespace))
            try:
                await start_uncancelled(producer.start)
                await self._restore()
                await self._tick_while_active(producer)
            except (ProducerFenced, InvalidProducerEpoch):
                logger.warning("another ticker took over after tick=%s", self.last and self.last.number)
                pause = self._settings.session_timeout_s
            except (KafkaError, UnavailableError, TimeoutError, OSError) as error:
                logger.warning("ticking failed, trying again in %.0f s error=%r", pause, error)
            except BaseException as error:  # a clock must not stop for an unforeseen error
                if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                    raise
                logger.error("ticking failed, trying again in %.0f s", pause, exc_info=error)
            finally:
                await stop_producer(producer)
                await self._reports.stop()
            await asyncio.sleep(pause)

    async def _restore(self) -> None:
        written_ticks, fingerprint = await self._log.read(), self._settings.signing.fingerprint
        self.last, self._pulses = written_ticks.tick, written_ticks.pulses()
        self._applied = {  # a configuration that another key signed may not have counted
            place: config_hash
            for place, (config_hash, signed_with) in written_ticks.configs.items()
            if signed_with == fingerprint
        }
        self._removed = removed_runs(self._configs, written_ticks.configs) if self._configs else {}
        topics = [hop.topic for hop in self.watermarks.hops]
        if self.last is None and (last := await self._log.find_last_tick(topics)) is not None:
            logger.warning("%s has lost the last tick, continuing from tick=%d", self._log.topic, last.number)
            self.last = last
        newest, now_s = self.last.number if self.last else NO_TICK, time.monotonic()
        self.watermarks.reached = {topic.name: written_ticks.reached.get(topic.name, newest) for topic in topics}
        self.watermarks.members = written_ticks.members
        self._moved_at_s = dict.fromkeys(self.watermarks.reached, now_s)
        for passed in written_ticks.passed.values():
            self.watermarks.note_all(passed)
        self._old_reports = tuple(written_ticks.passed)
        logger.info("ticking from tick=%s", self.last and self.last.number)

    async def _tick_while_active(self, producer: AIOKafkaProducer) -> None:
        self._pace.begin(now_s=time.monotonic(), is_first=self.last is None)
        while self._active.is_set():
            await self._wait_for_work()
            self._reports.set_running(self._needs_reports())
            now_s = time.monotonic()
            new = self._next_pulse(now_s) if now_s >= self._pace.due_s(now_s=now_s) else None
            async with self._writing:
                await self._write(producer, new)

    def _next_pulse(self, now_s: float) -> Pulse:
        tick = next_tick(
            self.last,
            wall_clock_ms=wall_clock_ms(),
            interval_ms=self._pace.take_tick(now_s=now_s),
            nonce=secrets.token_hex(NONCE_BYTES),
        )
        return Pulse(tick, tuple(config_changes(self._configs, self._applied)))

    async def _wait_for_work(self) -> None:
        """Wait for the time of the next tick, or until one may go on: without work that waits for the next one."""
        while (remaining := self._pace.due_s(now_s=(now_s := time.monotonic())) - now_s) > 0:
            if self._pace.is_busy(now_s=now_s) and any(self._pulses_for(hop) for hop in self.watermarks.hops):
                await asyncio.sleep(min(TOGETHER_S, remaining))
                return
            self._has_moved.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._has_moved.wait(), remaining)

    def _needs_reports(self) -> bool:
        """Say whether another worker has a partition that time waits for."""
        here = self._runs_here()
        writers = {writer for hop in self.watermarks.hops for writer in hop.writers}
        return any(
            (stage, partition) not in here
            for stage, topic in writers
            for partition in range(partitions_of(topic, self._settings))
        )

    def _note_report(self, passed: dict[str, dict[int, int]], is_busy: bool) -> None:
        self.watermarks.note_all(passed)
        self._note_work(is_busy=is_busy)

    def _note_work(self, *, is_busy: bool) -> None:
        if is_busy:
            self._pace.note_work(now_s=time.monotonic())
        self._has_moved.set()

    def _pulses_for(self, hop: Hop, new: Pulse | None = None) -> list[Pulse]:
        """Return the ticks that an input may have now and does not have yet."""
        pulses = [*self._pulses, new] if new else self._pulses
        if not pulses:
            return []
        reached, limit = self.watermarks.reached[hop.topic.name], self.watermarks.limit(hop, pulses[-1].number)
        return [pulse for pulse in pulses if reached < pulse.number <= limit]

    async def _write(self, producer: AIOKafkaProducer, new: Pulse | None) -> None:
        """Write a new tick, and those before it, as far as each input may have them."""
        rows = list(self._log.pulse_rows(new)) if new else []
        removed = self._removed if new else {}
        for run_id, places in removed.items():
            rows += self._log.run_removal_rows(run_id, places, new.number if new else NO_TICK)
        reached = dict(self.watermarks.reached)
        for hop in self.watermarks.hops:
            count = max(1, MOST_ROWS // (len(reached) * partitions_of(hop.topic, self._settings)))
            for pulse in self._pulses_for(hop, new)[:count]:
                rows += self._rows_of(hop.topic, pulse)
                reached[hop.topic.name] = pulse.number
        if not rows:
            return
        everywhere = min(reached.values())
        pulses = [*self._pulses, new] if new else self._pulses
        for pulse in pulses:
            if pulse.number <= everywhere:
                rows += self._log.pulse_tombstones(pulse)
        rows.append(self._log.reached_row(reached))
        rows += self._log.merged_report_rows(self._old_reports, self.watermarks.passed)
        if self.watermarks.admit_members():
            rows.append(self._log.members_row(self.watermarks.members or ()))
        async with asyncio.timeout(self._settings.transaction_timeout_s):
            await write_transaction(producer, rows)
        self._old_reports = ()
        self._pulses = [pulse for pulse in pulses if pulse.number > everywhere]
        now_s = time.monotonic()
        self._moved_at_s |= {name: now_s for name, number in reached.items() if number != self.watermarks.reached[name]}
        self.watermarks.reached = reached
        if new is not None:
            self.last, self._removed = new.tick, {}
            for run_id in removed:
                logger.warning(
                    "run %s is no longer in the settings: what waited in it gets the fate run_removed. Under its old "
                    "name it goes on from where it stood; under a new one it begins at the oldest scores that are left",
                    run_id,
                )
            for change in new.changes:
                self._applied[change.place] = change.record.config_hash
                logger.info("applied configuration %s of %s", change.record.config_hash, change.place)

    def _rows_of(self, topic: Topic, pulse: Pulse) -> Iterator[Row]:
        for change in pulse.changes:
            if change.topic is topic:
                yield from self._rows_for_every_partition(topic, encode(change.record))
        yield from self._rows_for_every_partition(topic, encode(pulse.tick))

    def _rows_for_every_partition(self, topic: Topic, value: bytes) -> Iterable[Row]:
        name = topic.full_name(self._settings.namespace)
        headers = self._settings.signing.sign(OWNER, name, None, value) if topic.is_open else ()
        for partition in range(partitions_of(topic, self._settings)):
            yield Row(name, partition, None, value, headers)
