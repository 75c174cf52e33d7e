"""Two namespaces read for a comparison: replays of one log, or a replay and what live made of the same range."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from rollbus.schemas.chunks import is_chunk, parse
from rollbus.schemas.codec import decode
from rollbus.schemas.control import ConfigApplied, Tick
from rollbus.schemas.errors import RecordError
from rollbus.schemas.joining import Joiner
from rollbus.schemas.replays import ReplayManifest
from rollbus.schemas.topics import BATCHES, CURRICULUM, DROPS, RUN_LOG, SCORES, TRAJECTORIES, Topic
from rollbus.streams.replay.compare import Comparison, compare
from rollbus.streams.replay.manifest_kafka import find_manifest
from rollbus.streams.replay.recorded_kafka import read_whole
from rollbus.streams.replay.side import Side, Span, within
from rollbus.streams.settings import StreamSettings

LIVE = "live"
IN_ORDER = (TRAJECTORIES, SCORES, DROPS, RUN_LOG, CURRICULUM, BATCHES)


async def compare_replays(settings: StreamSettings, one: str, other: str) -> Comparison:
    """Compare two replays by name, `live` for the namespace itself; raises ConfigurationError, UnavailableError."""
    manifests = [await find_manifest(settings, name) for name in (one, other) if name != LIVE]
    span = common_span(manifests)
    sides = [await read_side(settings, name, span, manifests) for name in (one, other)]
    return compare(sides[0], sides[1], span)


def common_span(manifests: list[ReplayManifest]) -> Span:
    """Return the stream time that all have."""
    starts = [each.from_ms for each in manifests if each.from_ms is not None]
    ends = [each.to_ms for each in manifests if each.to_ms is not None]
    return Span(max(starts, default=None), min(ends, default=None))


async def read_side(settings: StreamSettings, name: str, span: Span, manifests: list[ReplayManifest]) -> Side:
    """Read what one side made of a span."""
    made = Side(name)
    manifest = next((each for each in manifests if each.name == name), None)
    if manifest is None:
        namespaces = dict.fromkeys(IN_ORDER, settings.namespace)
    else:  # a replay of later stages has live's records of the earlier ones
        written = manifest.records
        namespaces = {
            topic: manifest.namespace if topic.name in written or topic is DROPS else settings.namespace
            for topic in IN_ORDER
        }
    for topic, namespace in namespaces.items():
        records = [record async for record in decoded(settings.model_copy(update={"namespace": namespace}), topic)]
        within(records, made, span if namespace == settings.namespace else Span())
    return made


async def decoded(settings: StreamSettings, topic: Topic) -> AsyncGenerator[Any, None]:
    """Yield a topic's records, whole, without ticks and configurations."""
    joiner: Joiner[None] = Joiner()
    async with aclosing(read_whole(settings, topic)) as found:
        async for raw in found:
            try:
                data = raw.value
                if data is not None and is_chunk(data):
                    whole = joiner.add(parse(data), None)
                    if whole is None:
                        continue
                    data = whole.data
                record = decode(data)
            except RecordError:
                continue  # its stage, or the sink, has made a dead letter of it
            if not isinstance(record, Tick | ConfigApplied):
                yield record
