"""The ends of a range to offsets, and what of it no longer exists.

A range of times or ticks begins with its first tick and ends with its last one, in every partition. Ticks are found by
bisection: they are in order, and a read from any offset finds the next one.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from aiokafka import AIOKafkaConsumer, TopicPartition

from rollbus.runtime.kafka.reading import assign_paused, open_reader, read_bounds
from rollbus.schemas.codec import decode_if
from rollbus.schemas.errors import ConfigurationError, DataLossError
from rollbus.schemas.records.control import Tick
from rollbus.schemas.records.replays import ReplayRange
from rollbus.schemas.signing import OWNER, SignerOf
from rollbus.schemas.topics import Topic
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics import partitions_of
from rollbus.streams.kafka.topics_on_broker import partitions_on_broker
from rollbus.streams.replay.plan.range import Bound

GO_ON = "begin later, or go on without it by --allow-missing"
BRING_BACK = "`rollbus archive restore` brings back what an archive has"
POLL_MS = 500
LOOK_BYTES = 128 * 1024
"""Fetched at once where only the next tick is looked for."""


@dataclass(frozen=True, slots=True)
class ResolvedRange:
    """What there is to read."""

    ranges: tuple[ReplayRange, ...]
    missing: tuple[ReplayRange, ...] = ()
    """Records of the range that retention has deleted."""
    whole_from: int | None = None
    """Number of a tick from which every partition is whole; looked for only where something is missing."""
    last_tick: Tick | None = None
    """How far stream time has come in a partition; looked for only where the range is empty."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to read, and nothing gone."""
        return not self.missing and all(span.from_offset >= span.to_offset for span in self.ranges)


async def resolve(
    settings: StreamSettings, topic: Topic, start: Bound, end: Bound, *, from_first_record: bool = False
) -> ResolvedRange:
    """Return the offsets between two bounds; raises ConfigurationError where there is no such topic or range.

    With `from_first_record` the earliest is the first record that ever was: what retention deleted of it is missing.
    """
    name = topic.full_name(settings.namespace)
    places = [TopicPartition(name, number) for number in range(partitions_of(topic, settings))]
    partition_count = await partitions_on_broker(settings, name)
    if partition_count != len(places):
        raise ConfigurationError(
            f"{name} has {partition_count} partitions, not {len(places)}; look at namespace and `event_partitions`"
        )
    _refuse_unknown(topic, len(places), start, end)
    ranges, missing, cut = [], [], list[_Partition]()
    async with open_reader(settings.kafka, max_partition_fetch_bytes=LOOK_BYTES) as consumer:
        assign_paused(consumer, places)
        for place, bounds in (await read_bounds(consumer, places)).items():
            there = _Partition(consumer, place, *bounds, settings.signer_of(topic))
            start_offset = 0 if from_first_record and start == Bound() else min(await there.start(start), there.last)
            until = max(start_offset, await there.end(end))
            begin = min(max(start_offset, there.first), until)
            ranges.append(_range(topic, place, begin, until))
            if start_offset < begin:
                missing.append(_range(topic, place, start_offset, begin))
                cut.append(there)
        first_ticks = [await there.first_tick() for there in cut]
        whole_from = max((tick.number for tick in first_ticks if tick is not None), default=None)
        resolved_range = ResolvedRange(tuple(ranges), tuple(missing), whole_from)
        return replace(resolved_range, last_tick=await there.last_tick()) if resolved_range.empty else resolved_range


async def starts_of(settings: StreamSettings, topic: Topic, from_ms: int | None) -> dict[int, int]:
    """Return offsets by partition: nothing before them was made at that stream time, or later.

    Of a topic that has ticks. A stage learns of a stream time by a tick, which one transaction has written into every
    input and which was committed before the stage could read it: whatever is made at that time comes after that tick,
    however far stages lag. A partition without a tick of that time is left out.
    """
    if not from_ms:
        return {}
    resolved = await resolve(settings, topic, Bound(time_ms=from_ms), Bound())
    return {span.partition: span.from_offset for span in resolved.ranges if span.from_offset < span.to_offset}


def refuse_missing(
    missing: tuple[ReplayRange, ...], remedy: str = f"{GO_ON}; {BRING_BACK}", *, whole_from: int | None = None
) -> None:
    """Raise DataLossError that names what is gone, and from which tick nothing is."""
    if not missing:
        return
    missing_text = ", ".join(
        f"{span.topic}[{span.partition}] {span.from_offset} … {span.to_offset - 1}" for span in missing
    )
    whole = f"; every partition is whole from tick:{whole_from} on" if whole_from is not None else ""
    raise DataLossError(f"retention has deleted a part of the range: {missing_text}{whole}; {remedy}")


def refuse_empty(resolved: ResolvedRange) -> None:
    """Raise ConfigurationError for a range without a record: a replay of nothing would look like one of something."""
    if not resolved.empty:
        return
    there = ", ".join(f"{span.partition}:{span.from_offset}" for span in resolved.ranges)
    come = "no tick gives the stream time there: has a worker run?"
    if (tick := resolved.last_tick) is not None:
        at = datetime.fromtimestamp(tick.stream_time_ms / 1000, UTC)
        come = f"stream time there has come to {at:%Y-%m-%dT%H:%M:%S}, which is tick:{tick.number}"
    raise ConfigurationError(
        f"there is no record of {resolved.ranges[0].topic} in that range: it begins where it ends, at offsets {there}. "
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
    signer_of: SignerOf | None

    async def start(self, bound: Bound) -> int:
        """Return the wanted first offset; below `first` where it is gone."""
        if (offset := self._offset(bound)) is not None:
            return offset
        if not bound.by_tick:
            return self.last if bound.at_end else self.first
        placed_tick = await self._tick(lambda tick: _reaches(tick, bound))
        if placed_tick is None:
            return self.last
        offset, tick = placed_tick
        if _is_past(tick, bound):
            earlier = await self._tick(lambda tick: True)
            if earlier is not None and earlier[0] == offset:
                return 0  # it lies before every tick that is left: what is before that tick belongs to the range
        return offset

    async def end(self, bound: Bound) -> int:
        """Return the offset after the last wanted one."""
        if (offset := self._offset(bound)) is not None:
            return min(offset, self.last)
        if not bound.by_tick:
            return self.last
        placed_tick = await self._tick(lambda tick: _is_past(tick, bound))
        return await self._after_tick_before(placed_tick[0]) if placed_tick else self.last

    def _offset(self, bound: Bound) -> int | None:
        if bound.offset is not None:
            return bound.offset
        return dict(bound.offsets).get(self.place.partition)

    async def last_tick(self) -> Tick | None:
        """Return the last tick there is."""
        behind = await self._after_tick_before(self.last)
        tick = await self._tick_from(behind - 1, self.last) if behind > self.first else None
        return tick[1] if tick else None

    async def first_tick(self) -> Tick | None:
        """Return the first tick that is left."""
        tick = await self._tick_from(self.first, self.last)
        return tick[1] if tick else None

    async def _after_tick_before(self, offset: int) -> int:
        """Return the offset after the last tick before an offset; what follows it is of a later round."""
        low, high, after = self.first, offset, self.first
        while low < high:
            middle = (low + high) // 2
            tick = await self._tick_from(middle, high)
            if tick is None:
                high = middle
            else:
                low = after = tick[0] + 1
        return after

    async def _tick(self, holds: Callable[[Tick], bool]) -> tuple[int, Tick] | None:
        """Return the first tick for which something holds that holds for all later ones too."""
        low, high, placed_tick = self.first, self.last, None
        while low < high:
            middle = (low + high) // 2
            tick = await self._tick_from(middle, high)
            if tick is None:
                high = middle
            elif holds(tick[1]):
                placed_tick, high = tick, middle
            else:
                low = tick[0] + 1
        return placed_tick

    async def _tick_from(self, offset: int, end: int) -> tuple[int, Tick] | None:
        self.consumer.seek(self.place, offset)
        self.consumer.resume(self.place)
        while await self.consumer.position(self.place) < end:
            records = (await self.consumer.getmany(self.place, timeout_ms=POLL_MS)).get(self.place, ())
            for record in records:
                if record.offset >= end:
                    return None
                if self.signer_of is not None and self.signer_of(record) != OWNER:
                    continue
                if (tick := decode_if(record.value, Tick)) is not None:
                    return record.offset, tick
        return None


def _reaches(tick: Tick, bound: Bound) -> bool:
    return tick.number >= bound.tick if bound.tick is not None else tick.stream_time_ms >= (bound.time_ms or 0)


def _is_past(tick: Tick, bound: Bound) -> bool:
    return tick.number > bound.tick if bound.tick is not None else tick.stream_time_ms > (bound.time_ms or 0)
