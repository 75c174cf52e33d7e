"""Every topic of a namespace into ClickHouse: wiring of the Kafka source, the partitions' buffers and the inserts.

    kafka_source ─records─▶ ranges (one buffer per partition) ─offset ranges─▶ client ─▶ commit

`Sink.flush` works in the order that makes delivery safe:
1. It cuts an offset range from each partition's buffer.
2. It notes the ranges in `sink_ranges`, so that a successor cuts the same ones.
3. It inserts their rows, one insert per table and range, under a token that names range and content.
4. It commits the offsets to Kafka, once ClickHouse has acknowledged every insert.
While it writes, the sink reads the next records, so it can hold twice the limits of the settings.
After a crash in 2 or 3 the successor repeats the inserts under the same tokens, and ClickHouse drops them. If
ClickHouse has forgotten a token, ReplacingMergeTree absorbs the rows by id. Nothing is lost: offsets move last.
"""

import asyncio
import gc
import logging
import signal
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from rollbus.consumers.clickhouse.maintain.stored_ranges import read_range_marks
from rollbus.consumers.clickhouse.sink.kafka_source import Fetched, KafkaSinkSource, Partition
from rollbus.consumers.clickhouse.sink.ranges import NO_MARK, OffsetRange, PartitionBuffer
from rollbus.consumers.clickhouse.store.client import ClickHouse, Insert
from rollbus.consumers.clickhouse.store.migrator import migrate
from rollbus.consumers.clickhouse.store.origin import Row
from rollbus.consumers.clickhouse.store.plain_views import make_plain_views
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings, SinkSettings
from rollbus.runtime import metrics
from rollbus.runtime.health.heart import Heart, Report, beating
from rollbus.runtime.kafka.partitions import require_topics
from rollbus.runtime.kafka.positions import Position
from rollbus.runtime.log_mark import LogMark
from rollbus.schemas.errors import DataLossError, UnavailableError

logger = logging.getLogger(__name__)

POLL_S, IDLE_POLL_S = 0.2, 1.0
"""How long one poll waits, the second while nothing is to be written."""
QUIET_S = 30.0
"""How long records without a row, such as ticks, may wait to be noted: a restart reads so much again."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 10.0
"""Pauses between attempts double from the first to the longest."""
STOP_TIMEOUT_S = 10.0
"""How long a stop tries to write what is buffered: less than supervisors wait; the next start reads the rest again."""
SWITCH_INTERVAL_S = 0.0005
"""An insert waits several times for Python's lock, which the reading thread gives up after this time."""
COLLECT_EVERY = 500_000
"""New objects between two of Python's searches for reference cycles. Records form no cycles, so a search finds nothing.
Two full buffers hold 300,000 objects."""

Result = TypeVar("Result")


class ServiceCall(Protocol):
    """How to call a service: once, or again until it answers."""

    async def __call__(self, call: Callable[[], Awaitable[Result]], /) -> Result:
        """Return the call's result."""


@dataclass(slots=True)
class SinkCounters:
    """What one sink did since it started."""

    records: int = 0
    rows: int = 0
    dead_letters: int = 0
    flushes: int = 0
    retries: int = 0
    trouble: str | None = None
    """What the service says that is being waited for; None while all answer."""


class SinkStoppedError(Exception):
    """The sink has to stop while it waits for a service."""


async def retry(call: Callable[[], Awaitable[Result]], stop: asyncio.Event, counters: SinkCounters) -> Result:
    """Call until the service is available, with growing pauses; raises SinkStoppedError once `stop` is set."""
    pause_s = FIRST_PAUSE_S
    while not stop.is_set():
        try:
            answer = await call()
            counters.trouble = None
            return answer
        except UnavailableError as error:
            counters.retries += 1
            counters.trouble = str(error)
            metrics.SINK_RETRIES.inc()
            logger.warning("trying again in %.1f s error=%s", pause_s, error)
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), pause_s)
        pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
    raise SinkStoppedError


async def _call_once(call: Callable[[], Awaitable[Result]]) -> Result:
    return await call()


class Sink:
    """One member of the sink's consumer group."""

    def __init__(
        self,
        settings: SinkSettings,
        source: KafkaSinkSource,
        client: ClickHouse,
        *,
        stop: asyncio.Event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take a started source and a client of a migrated database."""
        self.counters = SinkCounters()
        self._settings = settings
        self._source = source
        self._client = client
        self._stop = stop
        self._clock = clock
        self._generation = source.generation
        self._buffers: dict[Partition, PartitionBuffer] = {}
        self._pending: list[OffsetRange] = []
        """Ranges that are cut and not committed yet; they survive a failed attempt to write them."""
        self._waiting_since: float | None = None
        """When the first record came that is not written yet."""
        self._rows_since: float | None = None
        """The same of a record that makes a row."""
        self._writing: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Read and write until `stop` is set; then write the buffers, for as long as the settings allow."""
        with suppress(SinkStoppedError):
            while not self._stop.is_set():
                is_idle = self._writing is None and self._rows_since is None
                poll_s = IDLE_POLL_S if is_idle else POLL_S
                await self._buffer_records(await self._retry(partial(self._source.poll, poll_s)))
                if self._writing is not None and self._writing.done():
                    await self._finish_writing()
                if self._is_flush_due():
                    await self._finish_writing()
                    self._writing = asyncio.create_task(self.flush(self._retry))
                    await asyncio.sleep(0)  # it cuts its ranges before the next records come
        try:
            await asyncio.wait_for(self._drain(), STOP_TIMEOUT_S)
        except (TimeoutError, UnavailableError) as error:
            logger.warning("stopped before all records were written; the next start reads them again error=%r", error)

    async def _finish_writing(self) -> None:
        """Wait for the flush under way; raises its error."""
        writing, self._writing = self._writing, None
        if writing is not None:
            await writing

    async def _drain(self) -> None:
        with suppress(SinkStoppedError):
            await self._finish_writing()
        if self._pending:
            await self.flush(_call_once)  # first what failed, then what is still buffered
        await self.flush(_call_once)

    async def flush(self, attempt: ServiceCall) -> None:
        """Write and commit the buffers; the module's docstring lists the steps."""
        generation = self._generation
        if generation != self._source.generation:
            return
        if not self._pending:
            self._pending = [cut for buffer in self._buffers.values() if (cut := buffer.cut()) is not None]
            has_more = any(buffer.bytes for buffer in self._buffers.values())
            self._waiting_since = self._clock() if has_more else None
            self._rows_since = self._waiting_since
        if not self._pending:
            return
        start_s = time.monotonic()
        inserts = deque([Insert("sink_ranges", [self._range_row(cut) for cut in self._pending])])
        inserts += (
            Insert(table, rows, cut.token(table)) for cut in self._pending for table, rows in cut.tables.items()
        )
        await attempt(lambda: asyncio.to_thread(self._client.insert_in_turn, inserts))
        positions = {(cut.topic, cut.partition): Position(cut.next_offset, cut.mark) for cut in self._pending}
        if generation == self._source.generation and await attempt(lambda: self._source.commit(positions)):
            self._count(self._pending)
            metrics.INSERT_SECONDS.observe(time.monotonic() - start_s)
        self._pending = []

    def report(self) -> Report:
        """Say which partitions it reads, how far each is written, and whether records wait for ClickHouse."""
        next_offsets = {f"{topic}[{number}]": buffer.next_offset for (topic, number), buffer in self._buffers.items()}
        return Report(
            holds=tuple(sorted(next_offsets)),
            positions=next_offsets,
            work=self.counters.records,
            is_behind=bool(self._pending) or self._rows_since is not None or self.counters.trouble is not None,
            trouble=self.counters.trouble,
        )

    async def _buffer_records(self, fetched: Fetched) -> None:
        if fetched.generation != self._generation:
            await self._finish_writing()
            self._buffers.clear()
            self._pending = []
            self._waiting_since = self._rows_since = None
            self._generation = fetched.generation
        if fetched.starts:
            planned = await self._retry(lambda: asyncio.to_thread(self._read_planned, fetched))
            if fetched.resumed:
                await self._retry(lambda: asyncio.to_thread(self._require_noted, fetched.resumed))
            for partition, start in fetched.starts.items():
                mark = fetched.marks.get(partition, NO_MARK)
                self._buffers[partition] = self._new_buffer(partition, start, mark, planned.get(partition))
        if fetched.moved:
            await self._skip_lost(fetched.moved)
        for record in fetched.records:
            self._buffers[record.topic, record.partition].add(record)
        for partition, position in fetched.positions.items():
            self._buffers[partition].advance(position)
        if fetched.records and self._waiting_since is None:
            self._waiting_since = self._clock()
        if self._rows_since is None and any(buffer.rows for buffer in self._buffers.values()):
            self._rows_since = self._clock()

    async def _skip_lost(self, moved_starts: Mapping[Partition, int]) -> None:
        """Write what was read, so that no range covers the lost records, and go on behind them."""
        await self._finish_writing()
        await self.flush(self._retry)
        for partition, start in moved_starts.items():
            self._buffers[partition] = self._new_buffer(partition, start, self._buffers[partition].mark)

    def _new_buffer(
        self, partition: Partition, start: int, mark: LogMark, planned_last: int | None = None
    ) -> PartitionBuffer:
        topic, number = partition
        return PartitionBuffer(
            namespace=self._settings.namespace,
            topic=topic,
            partition=number,
            start=start,
            planned_last=planned_last,
            mark=mark,
        )

    def _read_planned(self, fetched: Fetched) -> dict[Partition, int]:
        """Return the last offset of each noted range that begins at one of these starts and lies within the log."""
        _, rows = self._client.query(
            "SELECT kafka_topic, kafka_partition, from_offset, last_offset FROM sink_ranges FINAL "
            "WHERE namespace = {namespace:String} AND rows > 0 "
            "AND (kafka_topic, kafka_partition, from_offset) IN {starts:Array(Tuple(String, Int32, Int64))}",
            {
                "namespace": self._settings.namespace,
                "starts": [(*partition, start) for partition, start in fetched.starts.items()],
            },
        )
        return {(topic, number): last for topic, number, _, last in rows if last < fetched.ends[topic, number]}

    def _require_noted(self, resumed: Mapping[Partition, int]) -> None:
        """Refuse to go on where the group has committed more than this database has noted; raises DataLossError.

        On a cluster a replica may be behind for a moment, so nothing is compared there.
        """
        if self._client.cluster:
            return
        _, rows = self._client.query(
            "SELECT kafka_topic, kafka_partition, max(next_offset) FROM sink_ranges "
            "WHERE namespace = {namespace:String} GROUP BY kafka_topic, kafka_partition",
            {"namespace": self._settings.namespace},
        )
        stored_ends = {(topic, number): end for topic, number, end in rows}
        for (topic, number), committed in sorted(resumed.items()):
            if stored_ends.get((topic, number), 0) < committed:
                raise DataLossError(
                    f"the sink's group has committed offset {committed} of {topic}:{number}, and database "
                    f"{self._client.database} ends at {stored_ends.get((topic, number), 0)}: it is new, or a backup; "
                    "`rollbus sink rebuild` fills it from the log (`--from` an archive for what Kafka has deleted), "
                    "then start the sink again"
                )

    def _is_flush_due(self) -> bool:
        if self._waiting_since is None:
            return False
        now_s, rows_since = self._clock(), self._rows_since
        return (
            now_s - self._waiting_since >= QUIET_S
            or (rows_since is not None and now_s - rows_since >= self._settings.linger_ms / 1000)
            or sum(buffer.rows for buffer in self._buffers.values()) >= self._settings.max_rows
            or sum(buffer.bytes for buffer in self._buffers.values()) >= self._settings.max_bytes
        )

    def _range_row(self, cut: OffsetRange) -> Row:
        end_offset = max(cut.next_offset, self._source.end_offset((cut.topic, cut.partition)))
        return cut.row(self._settings.namespace, end_offset=end_offset)

    async def _retry(self, call: Callable[[], Awaitable[Result]]) -> Result:
        return await retry(call, self._stop, self.counters)

    def _count(self, ranges: list[OffsetRange]) -> None:
        self.counters.flushes += 1
        self.counters.records += sum(cut.added for cut in ranges)
        self.counters.rows += sum(cut.rows for cut in ranges)
        dead_letters = sum(cut.dead_letters for cut in ranges)
        self.counters.dead_letters += dead_letters
        metrics.SINK_RECORDS.inc(sum(cut.added for cut in ranges))
        metrics.SINK_ROWS.inc(sum(cut.rows for cut in ranges))
        metrics.SINK_DEAD_LETTERS.inc(dead_letters)
        if dead_letters:
            logger.warning(
                "%d records became dead letters (%d since the start); see `rollbus sql run dead_letters_by_class`",
                dead_letters,
                self.counters.dead_letters,
            )


Prepare = Callable[[ClickHouseSettings], object]


async def run_sink_async(
    settings: SinkSettings,
    *,
    stop: asyncio.Event,
    prepare: Sequence[Prepare] = (migrate,),
    heart: Heart | None = None,
) -> SinkCounters:
    """Prepare the database, then run one sink until `stop` is set; waits for services that are not available yet.

    Raises ConfigurationError that names the topics that do not exist.
    """
    client = ClickHouse(settings.clickhouse)
    source = KafkaSinkSource(settings, partial(asyncio.to_thread, read_range_marks, client, settings.namespace))
    sink = Sink(settings, source, client, stop=stop)
    async with beating(heart, sink.report):
        await _run(settings, sink, source, client, stop, prepare)
    return sink.counters


async def _run(
    settings: SinkSettings,
    sink: Sink,
    source: KafkaSinkSource,
    client: ClickHouse,
    stop: asyncio.Event,
    prepare: Sequence[Prepare],
) -> None:
    with suppress(SinkStoppedError):
        for step in prepare:
            await retry(partial(asyncio.to_thread, step, settings.clickhouse), stop, sink.counters)
        # Kafka's client would look for a topic that is not there a hundred times a second, and not say what makes it.
        await retry(partial(require_topics, settings.kafka, source.topics), stop, sink.counters)
        await retry(source.start, stop, sink.counters)
        logger.info("sink started group=%s database=%s", settings.group_id, settings.clickhouse.database)
        try:
            await sink.run()
        finally:
            await source.stop()
            client.close()
            logger.info("sink stopped %s", sink.counters)


def run_sink(settings: SinkSettings, *, heart: Heart | None = None) -> SinkCounters:
    """Run one sink until SIGINT or SIGTERM; it blocks, and wants a process of its own."""

    async def run_until_signal() -> SinkCounters:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        return await run_sink_async(settings, stop=stop, prepare=(migrate, make_plain_views), heart=heart)

    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(COLLECT_EVERY)
    return asyncio.run(run_until_signal())
