"""A bounded range of a recorded topic, partition by partition, each read on its own so that memory stays bounded."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from rollbus.schemas.replays import ReplayRange
from rollbus.schemas.topics import topic_of
from rollbus.streams.batch import RawRecord

POLL_MS = 500
READ_AT_ONCE = 1_000
"""Records; the rest of what a fetch brought stays compressed, which in memory is tens of megabytes less."""
ENDLESS = 2**62
Progress = Callable[[int, int, int], None]
"""Offsets, records and bytes of a read."""


def assign(consumer: AIOKafkaConsumer, namespace: str, ranges: Sequence[ReplayRange]) -> dict[ReplayRange, Any]:
    """Assign a started consumer to the ranges, standing at their beginnings."""
    places = {one: TopicPartition(topic_of(one.topic).full_name(namespace), one.partition) for one in ranges}
    consumer.assign(list(places.values()))
    for one, place in places.items():
        consumer.seek(place, one.from_offset)
    return places


class KafkaSource:
    """One partition of the range."""

    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        place: TopicPartition,
        span: ReplayRange,
        progress: Progress = lambda offsets, records, size: None,
        *,
        stop: asyncio.Event | None = None,
    ) -> None:
        """With `stop` the range has no end: it is followed until the event is set."""
        self._stop = stop
        self.partition = span.partition
        self._consumer, self._place, self._progress = consumer, place, progress
        self._end = ENDLESS if stop is not None else span.to_offset
        self._position = span.from_offset

    async def read(self) -> Sequence[RawRecord]:
        """Return the next records; none at the range's end."""
        while self._position < self._end and not (self._stop is not None and self._stop.is_set()):
            fetched = await self._consumer.getmany(self._place, timeout_ms=POLL_MS, max_records=READ_AT_ONCE)
            found: Sequence[Any] = fetched.get(self._place, ())
            position = min(await self._consumer.position(self._place), self._end)
            if found and found[-1].offset >= self._end:
                found = [record for record in found if record.offset < self._end]
            self._progress(position - self._position, len(found), sum(len(record.value or b"") for record in found))
            self._position = position
            if found:
                return found
        return ()
