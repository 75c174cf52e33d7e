"""A deletion that was cut short is finished by the same command; what another log has a replay of is left to it."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from rollbus.runtime.kafka.clients import new_admin, running
from rollbus.schemas.errors import UnavailableError
from rollbus.schemas.records.replays import ReplayManifest
from rollbus.settings import Settings
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics_on_broker import ensure_topics, topics_on_broker
from rollbus.streams.replay.kafka import manifest as manifest_module
from rollbus.streams.replay.kafka.manifest import forget_topics, read_manifests, write_manifest
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
    made = ReplayManifest(name=name, namespace=namespace_of(name), source_namespace=stream.namespace, state="complete",
                          stages=("scoring",), ranges=(), started_at_ms=0)  # fmt: skip
    return made, stream.model_copy(update={"namespace": made.namespace})


async def topics_of(own: StreamSettings) -> set[str]:
    return {name for name in await topics_on_broker(own) if name.startswith(own.namespace)}


@pytest.mark.parametrize("written", [True, False])
async def test_a_deletion_that_was_cut_short_is_finished_by_the_same_command(
    stream: StreamSettings, delete: Say, written: bool
) -> None:
    """As is that of a replay which was killed after it had made its topics, before it had said so."""
    manifest, own = replay_of(stream)
    made = await ensure_topics(own)
    if written:
        await write_manifest(stream, replace(manifest, state="deleted"))
    told = await asyncio.to_thread(delete, manifest.name)
    assert told == f"deleted replay '{manifest.name}': {len(made)} topics\n"
    assert await topics_of(own) == set()
    assert f"no replay '{manifest.name}'" in await asyncio.to_thread(delete, manifest.name, expect=1)


async def groups_of(stream: StreamSettings, name: str) -> list[str]:
    """The consumer groups that a replay's name has left on the broker."""
    async with running(stream.kafka, admin := new_admin(stream.kafka)):
        return [group for group, *_ in await admin.list_consumer_groups() if group.startswith(namespace_of(name))]


async def test_a_name_that_no_replay_has_is_refused_and_leaves_nothing_behind(
    stream: StreamSettings, delete: Say
) -> None:
    manifest, own = replay_of(stream)
    await write_manifest(stream, manifest)
    mistyped = f"{manifest.name}x"
    told = await asyncio.to_thread(delete, mistyped, expect=1)
    assert f"no replay '{mistyped}' of {stream.namespace}; did you mean '{manifest.name}'?" in told
    assert await groups_of(stream, mistyped) == []
    assert await topics_of(own.model_copy(update={"namespace": namespace_of(mistyped)})) == set()
    assert [manifest] == list((await read_manifests(stream)).values())


async def test_a_replay_of_another_log_is_not_taken_for_what_a_deletion_left(
    stream: StreamSettings, delete: Say
) -> None:
    manifest, own = replay_of(stream)
    theirs = stream.model_copy(update={"namespace": f"b{stream.namespace}"})
    await ensure_topics(theirs)
    made = await ensure_topics(own)
    await write_manifest(theirs, replace(manifest, source_namespace=theirs.namespace))
    await write_manifest(stream, replace(manifest, state="deleted"))
    told = await asyncio.to_thread(delete, manifest.name, expect=1)
    assert f"another log, that of {theirs.namespace}; delete it there" in told
    assert await topics_of(own) == set(made)
    assert manifest.name in await read_manifests(theirs)


@pytest.mark.parametrize("vanishes", [True, False])
async def test_another_namespace_that_is_deleted_meanwhile_stops_no_deletion(
    stream: StreamSettings, delete: Say, monkeypatch: pytest.MonkeyPatch, vanishes: bool
) -> None:
    manifest, own = replay_of(stream)
    theirs = stream.model_copy(update={"namespace": f"b{stream.namespace}"})
    await ensure_topics(theirs)
    made = await ensure_topics(own)
    read = manifest_module.read_manifests

    async def fail_for_theirs(settings: StreamSettings) -> dict[str, ReplayManifest]:
        if settings.namespace != theirs.namespace:
            return await read(settings)
        if vanishes:
            await forget_topics(theirs)
        raise UnavailableError("the topic does not answer")

    monkeypatch.setattr(manifest_module, "read_manifests", fail_for_theirs)
    if vanishes:
        told = await asyncio.to_thread(delete, manifest.name)
        assert told == f"deleted replay '{manifest.name}': {len(made)} topics\n"
    else:
        assert "the topic does not answer" in await asyncio.to_thread(delete, manifest.name, expect=1)
        await forget_topics(theirs)
