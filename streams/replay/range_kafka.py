"""The ends of a range to offsets, and what of it no longer exists.

A range of times or ticks begins with its first tick and ends with its last one, in every partition. Ticks are found by
bisection: they stand in order, and a read tells the next one behind any offset.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError, OffsetOutOfRangeError

from rollbus.schemas.chunks import is_chunk
from rollbus.schemas.codec import decode, record_name
from rollbus.schemas.control import Tick
from rollbus.schemas.errors import ConfigurationError, DataLossError
from rollbus.schemas.replays import ReplayRange
from rollbus.schemas.topics import Topic
from rollbus.streams.replay.range import Bound
from rollbus.streams.settings import StreamSettings
from rollbus.streams.topics import partitions_of
from rollbus.streams.topics_kafka import partitions_on_broker

GO_ON = "begin later, or go on without it by --allow-missing"
POLL_MS = 500
FETCH_BYTES = 4 * 1024 * 1024
LOOK_BYTES = 128 * 1024
"""Fetched at once where only the next tick is looked for."""


@dataclass(frozen=True, slots=True)
class ResolvedRange:
    """What there is to read."""

    ranges: tuple[ReplayRange, ...]
    missing: tuple[ReplayRange, ...] = ()
    """Records of the range that retention has deleted."""
    last_tick: Tick | None = None
    """How far stream time has come in a partition; looked for only where the range is empty."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to read, and nothing gone."""
        return not self.missing and all(one.from_offset >= one.to_offset for one in self.ranges)


class AssignedOnce(AIOKafkaConsumer):  # type: ignore[misc]
    """A consumer whose partitions are chosen once.

    After another `assign` aiokafka's fetcher cancels what it has begun, and swallows the word to stop if that comes at
    the same moment: then it fetches for ever, and whoever stops the consumer waits as long.
    """

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Choose the partitions; raises RuntimeError if they were chosen already."""
        if self.assignment():
            raise RuntimeError(f"assigned to {len(self.assignment())} partitions already; take another reader")
        super().assign(partitions)


@asynccontextmanager
async def reader(settings: StreamSettings, *, fetch_bytes: int | None = None) -> AsyncIterator[AIOKafkaConsumer]:
    """Connect a consumer without a group, of committed records; raises DataLossError, UnavailableError."""
    consumer = AssignedOnce(
        **settings.kafka.client_options(),
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="none",
        fetch_max_wait_ms=50,
        max_partition_fetch_bytes=fetch_bytes or max(FETCH_BYTES, settings.max_partition_fetch_bytes),
    )
    try:
        await consumer.start()
        await asyncio.sleep(0)  # a consumer that is stopped before its tasks have begun raises CancelledError
        yield consumer
    except OffsetOutOfRangeError as error:
        raise _gone_meanwhile(settings, error) from error
    except (KafkaError, OSError) as error:
        raise settings.kafka.unavailable(error) from error
    finally:
        await consumer.stop()


def _gone_meanwhile(settings: StreamSettings, error: OffsetOutOfRangeError) -> DataLossError:
    """Return our error for records that were there when the range was looked up."""
    places: Mapping[TopicPartition, int] = error.args[0]
    gone = ", ".join(
        f"{place.topic.removeprefix(settings.namespace)}[{place.partition}] from {offset}"
        for place, offset in sorted(places.items())
    )
    return DataLossError(f"retention has deleted records before they were read: {gone}; give the command again")


async def resolve(settings: StreamSettings, topic: Topic, start: Bound, end: Bound) -> ResolvedRange:
    """Return the offsets between two bounds; raises ConfigurationError where there is no such topic or range."""
    name = topic.full_name(settings.namespace)
    places = [TopicPartition(name, number) for number in range(partitions_of(topic, settings))]
    known = await partitions_on_broker(settings, name)
    if known != len(places):
        raise ConfigurationError(
            f"{name} has {known} partitions, not {len(places)}; look at namespace and `event_partitions`"
        )
    _refuse_unknown(topic, len(places), start, end)
    ranges, missing = [], []
    async with reader(settings, fetch_bytes=LOOK_BYTES) as consumer:
        consumer.assign(places)
        firsts, ends = await consumer.beginning_offsets(places), await consumer.end_offsets(places)
        for place in places:
            there = _Partition(consumer, place, firsts[place], ends[place])
            wanted = min(await there.start(start), there.last)
            until = max(wanted, await there.end(end))
            begin = min(max(wanted, there.first), until)
            ranges.append(_range(topic, place, begin, until))
            if wanted < begin:
                missing.append(_range(topic, place, wanted, begin))
        found = ResolvedRange(tuple(ranges), tuple(missing))
        return replace(found, last_tick=await there.last_tick()) if found.empty else found


async def starts_of(settings: StreamSettings, topic: Topic, from_ms: int | None) -> dict[int, int]:
    """Return offsets by partition before which nothing stands that was made at that stream time, or later.

    Of a topic that has ticks. A stage learns of a stream time by a tick, which one transaction has written into every
    input and which was committed before the stage could read it: whatever is made at that time stands behind that tick,
    however far stages lag. A partition without a tick of that time does not tell, and is left out.
    """
    if not from_ms:
        return {}
    found = await resolve(settings, topic, Bound(time_ms=from_ms), Bound())
    return {one.partition: one.from_offset for one in found.ranges if one.from_offset < one.to_offset}


def refuse_missing(missing: tuple[ReplayRange, ...], remedy: str = GO_ON) -> None:
    """Raise DataLossError that names what is gone."""
    if missing:
        gone = ", ".join(f"{one.topic}[{one.partition}] {one.from_offset} … {one.to_offset - 1}" for one in missing)
        raise DataLossError(f"retention has deleted a part of the range: {gone}; {remedy}")


def refuse_empty(found: ResolvedRange) -> None:
    """Raise ConfigurationError for a range without a record: a replay of nothing would look like one of something."""
    if not found.empty:
        return
    there = ", ".join(f"{one.partition}:{one.from_offset}" for one in found.ranges)
    come = "no tick tells stream time there: has a worker run?"
    if (tick := found.last_tick) is not None:
        at = datetime.fromtimestamp(tick.stream_time_ms / 1000, UTC)
        come = f"stream time there has come to {at:%Y-%m-%dT%H:%M:%S}, which is tick:{tick.number}"
    raise ConfigurationError(
        f"there is no record of {found.ranges[0].topic} in that range: it begins where it ends, at offsets {there}. "
        f"Is --from before --to? Times are stream time, and {come}"
    )


def _refuse_unknown(topic: Topic, partitions: int, *bounds: Bound) -> None:
    """Raise ConfigurationError for a partition that there is not: perhaps it was meant as a time of day."""
    unknown = sorted({number for bound in bounds for number, _ in bound.offsets if number >= partitions})
    if unknown:
        raise ConfigurationError(
            f"{topic.name} has no partition {unknown[0]}: there are 0 to {partitions - 1}. Offsets are written "
            "0:1200,1:900 by partition, and times with their day, 2026-11-20T12:00"
        )


def _range(topic: Topic, place: TopicPartition, start: int, end: int) -> ReplayRange:
    return ReplayRange(topic=topic.name, partition=place.partition, from_offset=start, to_offset=end)


@dataclass(slots=True)
class _Partition:
    """One partition between its first kept offset and its end."""

    consumer: AIOKafkaConsumer
    place: TopicPartition
    first: int
    last: int

    async def start(self, bound: Bound) -> int:
        """Return the wanted first offset; below `first` where it is gone."""
        if (offset := self._offset(bound)) is not None:
            return offset
        if not bound.by_tick:
            return self.last if bound.at_end else self.first
        found = await self._tick(lambda tick: _reaches(tick, bound))
        if found is None:
            return self.last
        offset, tick = found
        if self.first > 0 and _is_past(tick, bound):
            earlier = await self._tick(lambda tick: True)
            if earlier is not None and earlier[0] == offset:
                return 0  # nobody knows where it stood: everything before is gone
        return offset

    async def end(self, bound: Bound) -> int:
        """Return the offset after the last wanted one."""
        if (offset := self._offset(bound)) is not None:
            return min(offset, self.last)
        if not bound.by_tick:
            return self.last
        found = await self._tick(lambda tick: _is_past(tick, bound))
        return await self._after_tick_before(found[0]) if found else self.last

    def _offset(self, bound: Bound) -> int | None:
        if bound.offset is not None:
            return bound.offset
        return dict(bound.offsets).get(self.place.partition)

    async def last_tick(self) -> Tick | None:
        """Return the last tick there is."""
        behind = await self._after_tick_before(self.last)
        found = await self._tick_from(behind - 1, self.last) if behind > self.first else None
        return found[1] if found else None

    async def _after_tick_before(self, offset: int) -> int:
        """Return the offset after the last tick before an offset; what follows it is of a later round."""
        low, high, found = self.first, offset, self.first
        while low < high:
            middle = (low + high) // 2
            tick = await self._tick_from(middle, high)
            if tick is None:
                high = middle
            else:
                low = found = tick[0] + 1
        return found

    async def _tick(self, holds: Callable[[Tick], bool]) -> tuple[int, Tick] | None:
        """Return the first tick for which something holds that holds for all later ones too."""
        low, high, found = self.first, self.last, None
        while low < high:
            middle = (low + high) // 2
            tick = await self._tick_from(middle, high)
            if tick is None:
                high = middle
            elif holds(tick[1]):
                found, high = tick, middle
            else:
                low = tick[0] + 1
        return found

    async def _tick_from(self, offset: int, end: int) -> tuple[int, Tick] | None:
        self.consumer.seek(self.place, offset)
        while await self.consumer.position(self.place) < end:
            records = (await self.consumer.getmany(self.place, timeout_ms=POLL_MS)).get(self.place, ())
            for record in records:
                if record.offset >= end:
                    return None
                if record.value and not is_chunk(record.value) and record_name(record.value) == Tick.__name__:
                    return record.offset, decode(record.value)
        return None


def _reaches(tick: Tick, bound: Bound) -> bool:
    return tick.number >= bound.tick if bound.tick is not None else tick.stream_time_ms >= (bound.time_ms or 0)


def _is_past(tick: Tick, bound: Bound) -> bool:
    return tick.number > bound.tick if bound.tick is not None else tick.stream_time_ms > (bound.time_ms or 0)
