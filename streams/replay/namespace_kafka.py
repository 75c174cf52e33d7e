"""A replay's own topics: as an earlier attempt at the same plan left them, or empty; and their deletion."""

from dataclasses import replace

from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.replays import ReplayManifest
from rollbus.schemas.topics import TOPICS
from rollbus.streams.replay.manifest_kafka import read_manifests, write_manifest
from rollbus.streams.settings import StreamSettings
from rollbus.streams.topics import partitions_of, topic_specs
from rollbus.streams.topics_kafka import delete_topics, ensure_topics


async def prepare_topics(source: StreamSettings, own: StreamSettings, manifest: ReplayManifest) -> list[str]:
    """Let a replay begin: topics that fit its plan, and its manifest; return the names of those that are new.

    Raises ConfigurationError for a name in use.
    """
    earlier = (await read_manifests(source)).get(manifest.name)
    if earlier is not None and earlier.state != manifest.state:
        raise ConfigurationError(
            f"there is a replay {manifest.name!r} already; choose another name, or `rollbus replay delete` it"
        )
    if earlier is None or not _same_plan(earlier, manifest):
        await forget_topics(own)
    created = await ensure_topics(own)
    await write_manifest(source, manifest)
    return created


async def forget_topics(own: StreamSettings) -> list[str]:
    """Delete a replay's topics; return their names."""
    return await delete_topics(own, [spec.name for spec in topic_specs(own)])


async def delete_replay(source: StreamSettings, manifest: ReplayManifest, *, now_ms: int) -> list[str]:
    """Say that a replay is deleted, then delete its topics; return their names."""
    await write_manifest(source, replace(manifest, state="deleted", finished_at_ms=now_ms))
    return await forget_topics(source.model_copy(update={"namespace": manifest.namespace}))


def written_places(settings: StreamSettings) -> list[tuple[str, int]]:
    """Return the partitions that a replay may write."""
    return [(topic.name, number) for topic in TOPICS for number in range(partitions_of(topic, settings))]


def _same_plan(one: ReplayManifest, other: ReplayManifest) -> bool:
    """Say whether two attempts give the same bytes: all but the clock is equal."""
    return replace(one, started_at_ms=0) == replace(other, started_at_ms=0)
