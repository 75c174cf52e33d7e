"""A replay's own topics: as an earlier attempt at the same plan left them, or empty; and their deletion.

Whoever calls these holds the replay's lease.
"""

from collections.abc import Collection
from contextlib import aclosing
from dataclasses import replace

from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.replays import ReplayConfig, ReplayManifest
from rollbus.schemas.topics import REPLAYS, TOPICS
from rollbus.streams.replay.manifest_kafka import known_manifest, read_manifests, write_manifest
from rollbus.streams.replay.plan import namespace_of
from rollbus.streams.replay.recorded_kafka import read_whole
from rollbus.streams.replay.writer_kafka import Written, add_value, end_offsets, values_hash
from rollbus.streams.settings import StreamSettings
from rollbus.streams.topics import partitions_of, topic_specs
from rollbus.streams.topics_kafka import delete_topics, ensure_topics, topics_on_broker


async def prepare_topics(source: StreamSettings, own: StreamSettings, manifest: ReplayManifest) -> list[str]:
    """Let a replay begin: topics that fit its plan, and its manifest; return the names of those that are new.

    Raises ConfigurationError for a name in use.
    """
    earlier = (await read_manifests(source)).get(manifest.name)
    refuse_taken(earlier, manifest)
    if earlier is None:
        await _refuse_foreign(source, own, manifest.name, "choose another name")
    if earlier is None or not _same_bytes(earlier, manifest):
        await forget_topics(own)
    created = await ensure_topics(own)
    await write_manifest(source, manifest)
    return created


def refuse_taken(earlier: ReplayManifest | None, manifest: ReplayManifest) -> None:
    """Raise ConfigurationError for a name in use: a replay that ended keeps it, and a shadow from one unlike it."""
    if earlier is None:
        return
    if earlier.state != manifest.state:
        raise ConfigurationError(
            f"there is a replay {manifest.name!r} already; choose another name, or `rollbus replay delete` it"
        )
    if manifest.state == "following" and (told := _unlike(earlier, manifest)):
        raise ConfigurationError(
            f"there is a shadow {manifest.name!r} already that does something else ({told}); choose another name, or "
            f"`rollbus replay delete {manifest.name}` first"
        )


def _unlike(earlier: ReplayManifest, manifest: ReplayManifest) -> str:
    """Say what one shadow was told otherwise than the other; nothing where both were told the same."""
    told = []
    if earlier.stages != manifest.stages:
        told.append(f"stages: {', '.join(earlier.stages)}, not {', '.join(manifest.stages)}")
    if places := {_place(one) for one in {*earlier.overrides} ^ {*manifest.overrides}}:
        told.append(f"another configuration of {', '.join(sorted(places))}")
    if earlier.scores != manifest.scores:
        told.append(f"scores: {earlier.scores}, not {manifest.scores}")
    return "; ".join(told)


def _place(config: ReplayConfig) -> str:
    return f"{config.stage}.{config.run_id}" if config.run_id else config.stage


async def _refuse_foreign(source: StreamSettings, own: StreamSettings, name: str, remedy: str) -> None:
    """Raise ConfigurationError where the topics belong to a replay of another namespace's log.

    They may stand there without any: what began them was killed before it had said so.
    """
    topics = await topics_on_broker(own)
    if not any(topic.startswith(own.namespace) for topic in topics):
        return
    for topic in sorted(topics - {REPLAYS.full_name(source.namespace), REPLAYS.full_name(own.namespace)}):
        if topic.endswith(REPLAYS.name):
            other = source.model_copy(update={"namespace": topic.removesuffix(REPLAYS.name)})
            if name in await read_manifests(other):
                raise ConfigurationError(
                    f"{own.namespace}* is a replay of another log, that of {other.namespace}; {remedy}"
                )


async def forget_topics(own: StreamSettings) -> list[str]:
    """Delete a replay's topics; return their names."""
    return await delete_topics(own, [spec.name for spec in topic_specs(own)])


async def delete_replay(source: StreamSettings, manifest: ReplayManifest, *, now_ms: int) -> list[str]:
    """Say that a replay is deleted, then delete its topics; return their names."""
    await write_manifest(source, replace(manifest, state="deleted", finished_at_ms=now_ms))
    return await forget_topics(source.model_copy(update={"namespace": manifest.namespace}))


async def find_deletable(source: StreamSettings, name: str) -> ReplayManifest | None:
    """Return a replay's manifest; None where topics alone are left of one whose deletion or start was cut short.

    Raises ConfigurationError where there is neither, or the topics are those of another log's replay.
    """
    manifest = (await read_manifests(source)).get(name)
    if manifest is None:
        own = source.model_copy(update={"namespace": namespace_of(name)})
        await _refuse_foreign(source, own, name, "delete it there")
        if await topics_on_broker(own) & {spec.name for spec in topic_specs(own)}:
            return None
        return await known_manifest(source, name)  # raises, and names the nearest
    return manifest


async def delete_named(source: StreamSettings, name: str, *, now_ms: int) -> list[str]:
    """Delete a replay, or what is left of it; return the topics' names. Raises as `find_deletable` does."""
    manifest = await find_deletable(source, name)
    if manifest is None:
        return await forget_topics(source.model_copy(update={"namespace": namespace_of(name)}))
    return await delete_replay(source, manifest, now_ms=now_ms)


async def read_written(own: StreamSettings, created: Collection[str]) -> dict[tuple[str, int], Written]:
    """Return what stands in the partitions of a replay's topics; those that are new hold nothing."""
    topics = [topic for topic in TOPICS if topic.full_name(own.namespace) not in created]
    ends = await end_offsets(
        own, [(each.name, number) for each in topics for number in range(partitions_of(each, own))]
    )
    hashes = {place: values_hash() for place, end in ends.items() if end}
    for topic in topics:
        if any(name == topic.name for name, _ in hashes):
            async with aclosing(read_whole(own, topic)) as records:
                async for raw in records:
                    add_value(hashes[topic.name, raw.partition], raw.value or b"")
    return {place: Written(ends[place], found.digest()) for place, found in hashes.items()}


def _same_bytes(one: ReplayManifest, other: ReplayManifest) -> bool:
    """Say whether two attempts are to give the same bytes: all but the clock is equal, and nobody is asked anew."""
    return other.scores != "anew" and replace(one, started_at_ms=0) == replace(other, started_at_ms=0)
