"""Every topic of a namespace into ClickHouse: wiring of the Kafka source, the partitions' buffers and the inserts.

    kafka_source ─records─▶ ranges (one buffer per partition) ─offset ranges─▶ client_clickhouse ─▶ commit

The order that makes delivery safe, in `Sink.flush`:
1. cut each partition's buffer into an offset range,
2. write the ranges down in `sink_ranges` (so that a successor rebuilds the same ones),
3. insert their rows, one insert per table and range, under a token that names range and content,
4. commit the offsets to Kafka, only after ClickHouse has acknowledged every insert.
While ranges are written the next records are read and made into rows, so twice the limits of the settings can be held.
A crash after 2 or 3 repeats inserts under the same tokens, which ClickHouse drops; where it no longer remembers a
token, ReplacingMergeTree by id absorbs the rows. Nothing is lost, because offsets move last.
"""

import asyncio
import gc
import logging
import signal
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeVar

from rollbus.consumers.clickhouse.client_clickhouse import ClickHouse, Insert
from rollbus.consumers.clickhouse.kafka_source import Fetched, KafkaSource, Partition, connect
from rollbus.consumers.clickhouse.migrator import migrate
from rollbus.consumers.clickhouse.origin import Row
from rollbus.consumers.clickhouse.ranges import OffsetRange, PartitionBuffer
from rollbus.consumers.clickhouse.settings import SinkSettings
from rollbus.schemas.errors import UnavailableError

logger = logging.getLogger(__name__)

POLL_S = 0.2
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 10.0
"""Pauses between attempts double from the first to the longest."""

SWITCH_INTERVAL_S = 0.0005
"""How long a thread that writes waits for one that reads to give up Python's lock: several times per insert."""
COLLECT_EVERY = 500_000
"""Objects that may come before a search for unused cycles: records make none, and two full buffers hold 300,000."""

Result = TypeVar("Result")


class Attempt(Protocol):
    """How a call to a service is made: again and again, or once."""

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


class StoppedError(Exception):
    """The sink was told to stop while it waited for a service."""


def growing_pauses() -> Iterator[float]:
    """Yield the pauses between attempts, without end."""
    pause = FIRST_PAUSE_S
    while True:
        yield pause
        pause = min(pause * 2, LONGEST_PAUSE_S)


class Sink:
    """One member of the sink's consumer group."""

    def __init__(
        self,
        settings: SinkSettings,
        source: KafkaSource,
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
        """Cut, and not committed yet; survives a failed attempt to write it."""
        self._waiting_since: float | None = None
        self._writing: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Read and write until told to stop; then write what is buffered, as far as the time for it goes."""
        with suppress(StoppedError):
            while not self._stop.is_set():
                await self._take(await self._with_retries(lambda: self._source.poll(POLL_S)))
                if self._writing is not None and self._writing.done():
                    await self._written()
                if self._is_due():
                    await self._written()
                    self._writing = asyncio.create_task(self.flush(self._with_retries))
                    await asyncio.sleep(0)  # it cuts its ranges before the next records come
        try:
            await asyncio.wait_for(self._drain(), self._settings.stop_timeout_s)
        except (TimeoutError, UnavailableError) as error:
            logger.warning("stopped before everything was written; it will be read again error=%r", error)

    async def _written(self) -> None:
        """Wait until what is being written is written; raises what stopped it."""
        writing, self._writing = self._writing, None
        if writing is not None:
            await writing

    async def _drain(self) -> None:
        with suppress(StoppedError):
            await self._written()
        if self._pending:
            await self.flush(_once)
        await self.flush(_once)

    async def flush(self, attempt: Attempt) -> None:
        """Write and commit what is buffered; the steps are in the module's docstring."""
        generation = self._generation
        if generation != self._source.generation:
            return
        if not self._pending:
            self._pending = [made for buffer in self._buffers.values() if (made := buffer.cut()) is not None]
            left_over = any(buffer.bytes for buffer in self._buffers.values())
            self._waiting_since = self._clock() if left_over else None
        if not self._pending:
            return
        waiting = deque([Insert("sink_ranges", [self._plan_row(made) for made in self._pending])])
        waiting += (
            Insert(table, rows, made.token(table)) for made in self._pending for table, rows in made.tables.items()
        )
        await attempt(lambda: asyncio.to_thread(self._client.insert_in_turn, waiting))
        offsets = {(made.topic, made.partition): made.next_offset for made in self._pending}
        if generation == self._source.generation and await attempt(lambda: self._source.commit(offsets)):
            self._count(self._pending)
        self._pending = []

    async def _take(self, fetched: Fetched) -> None:
        if fetched.generation != self._generation:
            await self._written()
            self._buffers.clear()
            self._pending = []
            self._waiting_since = None
            self._generation = fetched.generation
        if fetched.starts:
            await self._begin(fetched)
        if fetched.moved:
            await self._move(fetched.moved)
        for record in fetched.records:
            self._buffers[record.topic, record.partition].add(record)
        for partition, position in fetched.positions.items():
            self._buffers[partition].advance(position)
        if fetched.records and self._waiting_since is None:
            self._waiting_since = self._clock()

    async def _begin(self, fetched: Fetched) -> None:
        planned = await self._with_retries(lambda: asyncio.to_thread(self._planned, fetched))
        for partition, start in fetched.starts.items():
            self._buffers[partition] = self._buffer(partition, start, planned.get(partition))

    async def _move(self, moved: Mapping[Partition, int]) -> None:
        """Write what was read, so that no range goes over what is gone, and go on behind it."""
        await self._written()
        await self.flush(self._with_retries)
        for partition, start in moved.items():
            self._buffers[partition] = self._buffer(partition, start)

    def _buffer(self, partition: Partition, start: int, planned_last: int | None = None) -> PartitionBuffer:
        topic, number = partition
        return PartitionBuffer(
            namespace=self._settings.namespace, topic=topic, partition=number, start=start, planned_last=planned_last
        )

    def _planned(self, fetched: Fetched) -> dict[Partition, int]:
        """Return the last offset of ranges that were begun at these very starts and lie within the log."""
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

    def _is_due(self) -> bool:
        if self._waiting_since is None:
            return False
        return (
            self._clock() - self._waiting_since >= self._settings.linger_ms / 1000
            or sum(buffer.rows for buffer in self._buffers.values()) >= self._settings.max_rows
            or sum(buffer.bytes for buffer in self._buffers.values()) >= self._settings.max_bytes
        )

    def _plan_row(self, made: OffsetRange) -> Row:
        return {
            "namespace": self._settings.namespace,
            "kafka_topic": made.topic,
            "kafka_partition": made.partition,
            "from_offset": made.from_offset,
            "last_offset": made.last_offset,
            "next_offset": made.next_offset,
            "end_offset": max(made.next_offset, self._source.end_offset((made.topic, made.partition))),
            "records": made.records,
            "stored": made.stored,
            "rows": made.rows,
            "dead_letters": made.dead_letters,
            "bytes": made.bytes,
            "digest": made.digest,
        }

    async def _with_retries(self, call: Callable[[], Awaitable[Result]]) -> Result:
        for pause in growing_pauses():
            if self._stop.is_set():
                raise StoppedError
            try:
                return await call()
            except UnavailableError as error:
                self.counters.retries += 1
                logger.warning("trying again in %.1f s error=%s", pause, error)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), pause)
        raise AssertionError("pauses have no end")

    def _count(self, ranges: list[OffsetRange]) -> None:
        self.counters.flushes += 1
        self.counters.records += sum(made.added for made in ranges)
        self.counters.rows += sum(made.rows for made in ranges)
        dead_letters = sum(made.dead_letters for made in ranges)
        self.counters.dead_letters += dead_letters
        if dead_letters:
            logger.warning(
                "%d records became dead letters (%d since the start); see `rollbus sql run dead_letters_by_class`",
                dead_letters,
                self.counters.dead_letters,
            )


async def _once(call: Callable[[], Awaitable[Result]]) -> Result:
    return await call()


async def run_sink_async(settings: SinkSettings, *, stop: asyncio.Event) -> SinkCounters:
    """Migrate the database, then run one sink until `stop` is set; waits for services that are not there yet."""
    if not await _migrated(settings, stop):
        return SinkCounters()
    source = await connect(settings, pauses=growing_pauses(), stop=stop)
    if source is None:
        return SinkCounters()
    client = ClickHouse(settings.clickhouse)
    sink = Sink(settings, source, client, stop=stop)
    logger.info("sink started group=%s database=%s", settings.group_id, settings.clickhouse.database)
    try:
        await sink.run()
    finally:
        await source.stop()
        client.close()
        logger.info("sink stopped %s", sink.counters)
    return sink.counters


async def _migrated(settings: SinkSettings, stop: asyncio.Event) -> bool:
    for pause in growing_pauses():
        try:
            await asyncio.to_thread(migrate, settings.clickhouse)
            return True
        except UnavailableError as error:
            logger.warning("trying again in %.1f s error=%s", pause, error)
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), pause)
            return False
    return False


def run_sink(settings: SinkSettings) -> SinkCounters:
    """Run one sink until SIGINT or SIGTERM; blocking, for a process of its own."""

    async def until_signalled() -> SinkCounters:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        return await run_sink_async(settings, stop=stop)

    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(COLLECT_EVERY)
    return asyncio.run(until_signalled())
