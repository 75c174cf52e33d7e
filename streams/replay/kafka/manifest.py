"""Which replays there are, by their manifests in `replays` of the replayed namespace; and the topics of each.

The newest manifest of a name holds. A replay finds its topics as an earlier attempt at the same plan left them, or
empty. Only the holder of the replay's lease prepares, writes or deletes them.
"""

from collections.abc import Collection
from contextlib import aclosing
from dataclasses import replace

from rollbus.runtime.kafka.writing import Row, send_each
from rollbus.schemas.codec import encode
from rollbus.schemas.errors import ConfigurationError, nearest
from rollbus.schemas.records.replays import ReplayConfig, ReplayManifest
from rollbus.schemas.topics import REPLAYS, TOPICS
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics import partitions_of, topic_specs
from rollbus.streams.kafka.topics_on_broker import delete_topics, ensure_topics, topics_on_broker
from rollbus.streams.replay.kafka.source import read_records, read_whole
from rollbus.streams.replay.kafka.writer import WrittenPartition, add_value, end_offsets, values_hash
from rollbus.streams.replay.plan.plan import namespace_of


async def read_manifests(settings: StreamSettings) -> dict[str, ReplayManifest]:
    """Return the newest manifest of each replay, deleted ones left out; raises UnavailableError."""
    manifests = {record.name: record async for record in read_records(settings, REPLAYS, ReplayManifest)}
    return {name: manifest for name, manifest in manifests.items() if manifest.state != "deleted"}


async def write_manifest(settings: StreamSettings, manifest: ReplayManifest) -> None:
    """Write a manifest and wait until it is confirmed; raises UnavailableError."""
    row = Row(REPLAYS.full_name(settings.namespace), 0, manifest.name.encode(), encode(manifest))
    await send_each(settings.kafka, [row])


async def known_manifest(settings: StreamSettings, name: str) -> ReplayManifest:
    """Return a replay's manifest, whole or not; raises ConfigurationError for one that is not there."""
    manifests = await read_manifests(settings)
    if name not in manifests:
        raise ConfigurationError(f"no replay {name!r} of {settings.namespace}; {nearest(name, manifests)}")
    return manifests[name]


async def find_manifest(settings: StreamSettings, name: str) -> ReplayManifest:
    """Return a replay that counts; raises ConfigurationError for one that is not there or not whole."""
    manifest = await known_manifest(settings, name)
    if manifest.state not in ("complete", "following"):
        raise ConfigurationError(
            f"replay {name!r} is not whole: it was {manifest.state} and has not ended; give its command again to go on"
        )
    return manifest


async def prepare_topics(source: StreamSettings, target: StreamSettings, manifest: ReplayManifest) -> list[str]:
    """Let a replay begin: topics that fit its plan, and its manifest; return the names of those that are new.

    Raises ConfigurationError for a name in use.
    """
    earlier = (await read_manifests(source)).get(manifest.name)
    refuse_taken(earlier, manifest)
    if earlier is None or not _same_bytes(earlier, manifest):
        await forget_topics(target)
    created = await ensure_topics(target)
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
    if manifest.state == "following" and (changes := _unlike(earlier, manifest)):
        raise ConfigurationError(
            f"there is a shadow {manifest.name!r} already that does something else ({changes}); choose another name or "
            f"`rollbus replay delete {manifest.name}` first"
        )


def _unlike(earlier: ReplayManifest, manifest: ReplayManifest) -> str:
    """Say how the orders of two shadows differ; nothing if they are the same."""
    changes = []
    if earlier.stages != manifest.stages:
        changes.append(f"stages: {', '.join(earlier.stages)}, not {', '.join(manifest.stages)}")
    if places := {_place(override) for override in {*earlier.overrides} ^ {*manifest.overrides}}:
        changes.append(f"another configuration of {', '.join(sorted(places))}")
    if earlier.scores != manifest.scores:
        changes.append(f"scores: {earlier.scores}, not {manifest.scores}")
    return "; ".join(changes)


def _place(config: ReplayConfig) -> str:
    return f"{config.stage}.{config.run_id}" if config.run_id else config.stage


async def forget_topics(target: StreamSettings) -> list[str]:
    """Delete a replay's topics; return their names."""
    return await delete_topics(target, [spec.name for spec in topic_specs(target)])


async def delete_replay(source: StreamSettings, manifest: ReplayManifest, *, now_ms: int) -> list[str]:
    """Say that a replay is deleted, then delete its topics; return their names."""
    await write_manifest(source, replace(manifest, state="deleted", finished_at_ms=now_ms))
    return await forget_topics(source.model_copy(update={"namespace": manifest.namespace}))


async def find_deletable(source: StreamSettings, name: str) -> ReplayManifest | None:
    """Return a replay's manifest; None where topics alone are left of one whose deletion or start was cut short.

    Raises ConfigurationError where there is neither.
    """
    manifest = (await read_manifests(source)).get(name)
    if manifest is None:
        replay_settings = source.model_copy(update={"namespace": namespace_of(name, source.namespace)})
        if await topics_on_broker(replay_settings) & {spec.name for spec in topic_specs(replay_settings)}:
            return None
        return await known_manifest(source, name)  # raises, and names the nearest
    return manifest


async def delete_named(source: StreamSettings, name: str, *, now_ms: int) -> list[str]:
    """Delete a replay, or what is left of it; return the topics' names. Raises as `find_deletable` does."""
    manifest = await find_deletable(source, name)
    if manifest is None:
        return await forget_topics(source.model_copy(update={"namespace": namespace_of(name, source.namespace)}))
    return await delete_replay(source, manifest, now_ms=now_ms)


async def read_written(target: StreamSettings, created: Collection[str]) -> dict[tuple[str, int], WrittenPartition]:
    """Return what the partitions of a replay's topics hold; new ones hold nothing."""
    topics = [topic for topic in TOPICS if topic.full_name(target.namespace) not in created]
    ends = await end_offsets(
        target, [(topic.name, number) for topic in topics for number in range(partitions_of(topic, target))]
    )
    hashes = {place: values_hash() for place, end in ends.items() if end}
    for topic in topics:
        if any(name == topic.name for name, _ in hashes):
            async with aclosing(read_whole(target, topic)) as records:
                async for raw in records:
                    add_value(hashes[topic.name, raw.partition], raw.value or b"")
    return {place: WrittenPartition(ends[place], partition_hash.digest()) for place, partition_hash in hashes.items()}


def _same_bytes(manifest: ReplayManifest, other: ReplayManifest) -> bool:
    """Say whether two attempts are to give the same bytes: all but the clock is equal, and none asks again."""
    return other.scores != "rescored" and replace(manifest, started_at_ms=0) == replace(other, started_at_ms=0)
