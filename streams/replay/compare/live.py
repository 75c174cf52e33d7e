"""Two namespaces read for a comparison: replays of one log, or a replay and what live made of the same range."""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from rollbus.schemas.codec import decode, decode_if
from rollbus.schemas.errors import ConfigurationError, RecordError
from rollbus.schemas.records.control import ConfigApplied, Tick
from rollbus.schemas.records.replays import ReplayManifest, ReplayRange
from rollbus.schemas.topics import BATCHES, CURRICULUM, DROPS, RUN_LOG, SCORES, STAGE_INPUTS, TRAJECTORIES, Topic
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics import partitions_of
from rollbus.streams.replay.compare.differences import ReplayComparison, compare
from rollbus.streams.replay.compare.side import CommonTime, Side, take_in_span
from rollbus.streams.replay.kafka.manifest import find_manifest
from rollbus.streams.replay.kafka.source import ENDLESS, read_whole
from rollbus.streams.replay.plan.plan import CHAIN
from rollbus.streams.replay.plan.range import Bound
from rollbus.streams.replay.plan.range_on_broker import refuse_missing, resolve, starts_of

LIVE = "live"
TOPICS_OF_STAGE: Mapping[str, tuple[Topic, ...]] = {
    "assembly": (TRAJECTORIES,),
    "scoring": (SCORES,),
    "grouping": (RUN_LOG,),
    "group-scoring": (RUN_LOG,),
    "curriculum": (CURRICULUM, BATCHES),
}
"""What each stage writes of what is compared."""
TICKED = frozenset(topic.name for topic in STAGE_INPUTS.values())
"""Topics that hold ticks, by which the beginning of a range is found."""
MADE_AT = ("closed_at_ms", "cut_at_ms", "dropped_at_ms")
"""Fields with the stream time of a window, a batch or a drop: their topics hold no ticks."""
REPLAY_LATER = "replay a range that begins later, and compare that"
REPLAY_AGAIN = "give the replay again under another name, and compare that"
IN_ORDER = (TRAJECTORIES, SCORES, DROPS, RUN_LOG, CURRICULUM, BATCHES)
"""The topics of a side in the order in which they are read: that of the flow."""


async def compare_replays(settings: StreamSettings, left: str, right: str) -> ReplayComparison:
    """Compare two replays by name, `live` for the namespace itself.

    Raises ConfigurationError, DataLossError, UnavailableError.
    """
    manifests = [
        await _with_times(settings, await find_manifest(settings, name)) for name in (left, right) if name != LIVE
    ]
    span = common_span(manifests)
    last = last_of_all(manifests)
    await _refuse_deleted_of_live(settings, span, last, [_own_topics(name, manifests) for name in (left, right)])
    for manifest in manifests:
        await _refuse_deleted_of(settings, manifest, span, last)
    sides = [await read_side(settings, name, span, manifests) for name in (left, right)]
    return compare(sides[0], sides[1], span, last)


def last_of_all(manifests: Iterable[ReplayManifest]) -> str:
    """Return the last stage that all replays have run; raises ConfigurationError for one of aliases alone."""
    for manifest in manifests:
        if manifest.stages[-1] not in CHAIN:
            raise ConfigurationError(f"replay {manifest.name!r} made events alone; what is compared is made from them")
    return min((manifest.stages[-1] for manifest in manifests), key=CHAIN.index, default=CHAIN[-1])


def common_span(manifests: list[ReplayManifest]) -> CommonTime:
    """Return the stream time that all have; raises ConfigurationError where there is none, or it is not known."""
    if not manifests:
        return CommonTime()
    spans = [_span_of(manifest) for manifest in manifests]
    start, end = max(first for first, _ in spans), min(last for _, last in spans)
    if start > end:
        covered = (
            f"{replay.name!r} goes from {_describe_time(first)} to {_describe_time(last)}"
            for replay, (first, last) in zip(manifests, spans, strict=True)
        )
        raise ConfigurationError(
            f"the replays have no common time: {', '.join(covered)}; replay ranges that overlap, or compare each "
            "with live"
        )
    return CommonTime(start, end)


def _span_of(manifest: ReplayManifest) -> tuple[int, int]:
    if manifest.from_ms is None or manifest.to_ms is None:
        raise ConfigurationError(
            f"no tick tells which stream time replay {manifest.name!r} covers: a partition of its range holds none, or "
            "a shadow has not come to one yet; give the ends of the range as times, or compare later"
        )
    return manifest.from_ms, manifest.to_ms


def _describe_time(time_ms: int) -> str:
    """Return a time as a user writes it; a range that begins with the log has none."""
    if not time_ms:
        return "the log's beginning"
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").removesuffix("+00:00")


def made_by(manifest: ReplayManifest) -> frozenset[str]:
    """Return the topics that the replay writes itself, with or without a record; it shares the others with live."""
    return frozenset(topic.name for stage in manifest.stages for topic in TOPICS_OF_STAGE[stage]) | {DROPS.name}


def _own_topics(name: str, manifests: Iterable[ReplayManifest]) -> frozenset[str]:
    return next((made_by(manifest) for manifest in manifests if manifest.name == name), frozenset())


async def _refuse_deleted_of_live(
    settings: StreamSettings, span: CommonTime, last: str, own_topics_of_sides: Sequence[frozenset[str]]
) -> None:
    """Raise DataLossError where retention has deleted records of live that a side shares with it."""
    if span.from_ms is None:
        return
    of_live = (
        topic for topic in _list_compared_topics(last) if any(topic.name not in names for names in own_topics_of_sides)
    )
    deleted_ranges = [gap for topic in of_live for gap in await _find_deleted_ranges(settings, topic, span.from_ms)]
    refuse_missing(tuple(deleted_ranges), REPLAY_LATER)


async def _refuse_deleted_of(settings: StreamSettings, manifest: ReplayManifest, span: CommonTime, last: str) -> None:
    """Raise DataLossError where retention has deleted records that a replay has written and that are compared.

    Of a shadow only the records since the beginning of the span count.
    """
    where = settings.model_copy(update={"namespace": manifest.namespace})
    from_ms = (span.from_ms or 0) if manifest.state == "following" else 0
    topics = (topic for topic in _list_compared_topics(last) if topic.name in made_by(manifest))
    deleted_ranges = [gap for topic in topics for gap in await _find_deleted_ranges(where, topic, from_ms)]
    refuse_missing(
        tuple(replace(gap, topic=f"{manifest.namespace}{gap.topic}") for gap in deleted_ranges), REPLAY_AGAIN
    )


def _list_compared_topics(last: str) -> list[Topic]:
    """Return the topics that are compared where both sides have run the stages up to one."""
    topics = (topic for stage in CHAIN[: CHAIN.index(last) + 1] for topic in TOPICS_OF_STAGE[stage])
    return [*dict.fromkeys(topics), DROPS]


async def _find_deleted_ranges(settings: StreamSettings, topic: Topic, from_ms: int) -> tuple[ReplayRange, ...]:
    """Return the ranges of a topic that retention has deleted, except for those from before a stream time.

    In a topic without ticks the first record that is left tells the time; without such a record all ranges count.
    """
    if from_ms and topic.name in TICKED:
        return (await resolve(settings, topic, Bound(time_ms=from_ms), Bound())).missing
    deleted_ranges = (await resolve(settings, topic, Bound(offset=0), Bound())).missing
    if not from_ms:
        return deleted_ranges
    firsts = [await _first_ms(settings, topic, gap.partition) for gap in deleted_ranges]
    return tuple(
        gap for gap, first_ms in zip(deleted_ranges, firsts, strict=True) if first_ms is None or first_ms >= from_ms
    )


async def _first_ms(settings: StreamSettings, topic: Topic, partition: int) -> int | None:
    """Return the stream time of a partition's first record, for a topic without ticks; None without records."""
    other_partitions = {number: ENDLESS for number in range(partitions_of(topic, settings)) if number != partition}
    async with aclosing(decode_records(settings, topic, other_partitions)) as records:
        async for record in records:
            return next((getattr(record, name) for name in MADE_AT if hasattr(record, name)), None)
    return None


async def read_side(settings: StreamSettings, name: str, span: CommonTime, manifests: list[ReplayManifest]) -> Side:
    """Read what one side made of a span, record by record: payload does not stay.

    Live's records from before the span are not read: they belong to no trajectory of the span.
    """
    side, own_topics = Side(name), _own_topics(name, manifests)
    manifest = next((manifest for manifest in manifests if manifest.name == name), None)
    for topic in IN_ORDER:
        is_own = topic.name in own_topics
        namespace = manifest.namespace if manifest is not None and is_own else settings.namespace
        where, starts = settings.model_copy(update={"namespace": namespace}), dict[int, int]()
        if not is_own and topic.name in TICKED:
            starts = await starts_of(settings, topic, span.from_ms)
        async with aclosing(decode_records(where, topic, starts)) as records:
            async for record in records:
                take_in_span([record], side, CommonTime() if is_own else span)
    return side


async def _with_times(settings: StreamSettings, manifest: ReplayManifest) -> ReplayManifest:
    """Return a manifest with the stream times that it covers; a shadow's follow from the ticks that it has written."""
    if manifest.state != "following":
        return manifest
    topic = STAGE_INPUTS[manifest.stages[-1]]
    replay_settings = settings.model_copy(update={"namespace": manifest.namespace})
    ticks = list[tuple[int, int]]()
    async with aclosing(read_whole(replay_settings, topic)) as records:
        async for raw in records:
            if (tick := decode_if(raw.value, Tick)) is not None:
                ticks.append((raw.partition, tick.stream_time_ms))
    from_ms, to_ms = ticked_span(ticks, partitions_of(topic, replay_settings))
    return replace(manifest, from_ms=from_ms, to_ms=to_ms)


def ticked_span(ticks: Iterable[tuple[int, int]], partitions: int) -> tuple[int | None, int | None]:
    """Return the stream time that all partitions have, by (partition, time) of the ticks of each in order.

    Neither end is known while a partition has no tick.
    """
    first_ms, last_ms = dict[int, int](), dict[int, int]()
    for partition, time_ms in ticks:
        first_ms.setdefault(partition, time_ms)
        last_ms[partition] = time_ms
    return (max(first_ms.values()), min(last_ms.values())) if len(last_ms) == partitions else (None, None)


async def decode_records(
    settings: StreamSettings, topic: Topic, starts: Mapping[int, int] | None = None
) -> AsyncGenerator[Any, None]:
    """Yield a topic's records, whole, without ticks and configurations, from offsets on."""
    async with aclosing(read_whole(settings, topic, starts=starts)) as raw_records:
        async for raw in raw_records:
            try:
                record = decode(raw.value)
            except RecordError:
                continue  # its stage, or the sink, has made a dead letter of it
            if not isinstance(record, Tick | ConfigApplied):
                yield record
