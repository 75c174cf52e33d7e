"""Reads recorded topics: a bounded range, partition by partition, or the records of some types in a whole topic."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from rollbus.runtime.kafka.reading import READ_AT_ONCE, open_reader, read_from
from rollbus.schemas.codec import decode_if
from rollbus.schemas.limits import FETCH_BYTES
from rollbus.schemas.records.replays import ReplayRange
from rollbus.schemas.topics import Topic, topic_of
from rollbus.streams.exactly_once.batch import RawRecord
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics import partitions_of

POLL_MS = 500
"""How often a read looks whether it is to stop."""
ENDLESS = 2**62
"""An offset that no partition reaches."""
Progress = Callable[[int, int, int], None]
"""Is told of each read how many offsets it passed, and how many records and bytes it returned."""


def _ignore_progress(offsets: int, records: int, size_bytes: int) -> None:
    """Do nothing."""


@asynccontextmanager
async def open_ranges(
    settings: StreamSettings,
    ranges: Sequence[ReplayRange],
    progress: Progress = _ignore_progress,
    *,
    stop: asyncio.Event | None = None,
    fetch_bytes: int = FETCH_BYTES,
) -> AsyncIterator[list["KafkaRangeSource"]]:
    """Yield a connected source for each range; with `stop` they have no end. Raises DataLossError, UnavailableError."""
    places = {
        span: TopicPartition(topic_of(span.topic).full_name(settings.namespace), span.partition) for span in ranges
    }
    async with open_reader(settings.kafka, max_partition_fetch_bytes=fetch_bytes) as consumer:
        consumer.assign(list(places.values()))
        for span, place in places.items():
            consumer.seek(place, span.from_offset)
        yield [KafkaRangeSource(consumer, place, span, progress, stop=stop) for span, place in places.items()]


class KafkaRangeSource:
    """One partition of the range."""

    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        place: TopicPartition,
        span: ReplayRange,
        progress: Progress = _ignore_progress,
        *,
        stop: asyncio.Event | None = None,
    ) -> None:
        """With `stop` the range has no end: it is followed until the event is set."""
        self._stop = stop
        self.partition = span.partition
        self.place = place
        self._consumer, self._progress = consumer, progress
        self._end = ENDLESS if stop is not None else span.to_offset
        self._position = span.from_offset

    async def read(self) -> Sequence[RawRecord]:
        """Return the next records; none at the range's end."""
        while self._position < self._end and not (self._stop is not None and self._stop.is_set()):
            fetched = await self._consumer.getmany(self.place, timeout_ms=POLL_MS, max_records=READ_AT_ONCE)
            records: Sequence[Any] = fetched.get(self.place, ())
            position = min(await self._consumer.position(self.place), self._end)
            if records and records[-1].offset >= self._end:
                records = [record for record in records if record.offset < self._end]
            self._progress(position - self._position, len(records), sum(len(record.value or b"") for record in records))
            self._position = position
            if records:
                return records
        return ()


def read_whole(
    settings: StreamSettings, topic: Topic, partitions: int | None = None, *, starts: Mapping[int, int] | None = None
) -> AsyncGenerator[Any, None]:
    """Return every committed record of a topic's partitions, one after the other, as far as it goes now.

    `starts` are offsets by partition: what lies before them is not read.
    """
    name, starts = topic.full_name(settings.namespace), starts or {}
    count = partitions_of(topic, settings) if partitions is None else partitions
    return read_from(settings.kafka, {TopicPartition(name, number): starts.get(number, 0) for number in range(count)})


async def read_records(
    settings: StreamSettings, topic: Topic, *kinds: type, partitions: int | None = None
) -> AsyncGenerator[Any, None]:
    """Yield the records of these types that a topic holds, decoded."""
    async with aclosing(read_whole(settings, topic, partitions)) as records:
        async for raw in records:
            record = decode_if(raw.value, *kinds)
            if record is not None:
                yield record
