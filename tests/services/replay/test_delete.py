"""A deletion that was cut short is finished by the same command; what another log has a replay of is left to it."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from rollbus.runtime.kafka.clients import new_admin, running
from rollbus.schemas.records.replays import ReplayManifest
from rollbus.settings import Settings
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics_on_broker import ensure_topics, topics_on_broker
from rollbus.streams.replay.kafka.manifest import read_manifests, write_manifest
from rollbus.streams.replay.plan.plan import namespace_of
from tests.services.commands import say

pytestmark = pytest.mark.services

Say = Callable[..., str]


@pytest.fixture
def stream(new_log: Settings) -> StreamSettings:
    return new_log.stream_settings()


@pytest.fixture
def delete(tmp_path: Path) -> Say:
    return partial(say, tmp_path / "rollbus.yaml", "replay", "delete", "--no-clickhouse")


def replay_of(stream: StreamSettings) -> tuple[ReplayManifest, StreamSettings]:
    """A replay that has ended, not yet written down, and the settings of its topics."""
    name = stream.namespace.strip(".")
    source = stream.namespace
    manifest = ReplayManifest(
        name=name, namespace=namespace_of(name, source), source_namespace=source, state="complete",
        stages=("scoring",), ranges=(), started_at_ms=0,
    )  # fmt: skip
    return manifest, stream.model_copy(update={"namespace": manifest.namespace})


async def topics_of(replay_stream: StreamSettings) -> set[str]:
    return {name for name in await topics_on_broker(replay_stream) if name.startswith(replay_stream.namespace)}


@pytest.mark.parametrize("written", [True, False])
async def test_a_deletion_that_was_cut_short_is_finished_by_the_same_command(
    stream: StreamSettings, delete: Say, written: bool
) -> None:
    """As is that of a replay which was killed after it had made its topics, before it had said so."""
    manifest, replay_stream = replay_of(stream)
    new_topics = await ensure_topics(replay_stream)
    if written:
        await write_manifest(stream, replace(manifest, state="deleted"))
    output = await asyncio.to_thread(delete, manifest.name)
    assert output == f"deleted replay '{manifest.name}': {len(new_topics)} topics\n"
    assert await topics_of(replay_stream) == set()
    assert f"no replay '{manifest.name}'" in await asyncio.to_thread(delete, manifest.name, expect=1)


async def groups_of(stream: StreamSettings, name: str) -> list[str]:
    """The consumer groups that a replay's name has left on the broker."""
    async with running(stream.kafka, admin := new_admin(stream.kafka)):
        return [
            group
            for group, *_ in await admin.list_consumer_groups()
            if group.startswith(namespace_of(name, stream.namespace))
        ]


async def test_a_name_that_no_replay_has_is_refused_and_leaves_nothing_behind(
    stream: StreamSettings, delete: Say
) -> None:
    manifest, replay_stream = replay_of(stream)
    await write_manifest(stream, manifest)
    mistyped = f"{manifest.name}x"
    output = await asyncio.to_thread(delete, mistyped, expect=1)
    assert f"no replay '{mistyped}' of {stream.namespace}; did you mean '{manifest.name}'?" in output
    assert await groups_of(stream, mistyped) == []
    assert (
        await topics_of(replay_stream.model_copy(update={"namespace": namespace_of(mistyped, stream.namespace)}))
        == set()
    )
    assert [manifest] == list((await read_manifests(stream)).values())


async def test_a_replay_of_the_same_name_in_another_namespace_is_another_one(
    stream: StreamSettings, delete: Say
) -> None:
    manifest, replay_stream = replay_of(stream)
    theirs = stream.model_copy(update={"namespace": f"b{stream.namespace}"})
    their_namespace = namespace_of(manifest.name, theirs.namespace)
    new_topics = [set(await ensure_topics(settings)) for settings in (theirs, replay_stream)]
    their_topics = set(await ensure_topics(stream.model_copy(update={"namespace": their_namespace})))
    await write_manifest(theirs, replace(manifest, namespace=their_namespace, source_namespace=theirs.namespace))
    await write_manifest(stream, manifest)
    output = await asyncio.to_thread(delete, manifest.name)
    assert output == f"deleted replay '{manifest.name}': {len(new_topics[1])} topics\n"
    assert await topics_of(replay_stream) == set()
    assert await topics_of(stream.model_copy(update={"namespace": their_namespace})) == their_topics
    assert manifest.name in await read_manifests(theirs)
