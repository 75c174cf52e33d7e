"""Poison amid good events, live and then replayed: the replay refuses the same records, and comes to the same."""

import asyncio
import random
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from rollbus.consumers.dead_letters_kafka import read_dead_letters
from rollbus.hosted_stages import all_stages
from rollbus.schemas.codec import decode, encode
from rollbus.schemas.records.config import AssemblyConfig
from rollbus.schemas.records.drops import DeadLetter
from rollbus.schemas.records.trajectories import Trajectory
from rollbus.schemas.topics import EPISODE_EVENTS
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics_on_broker import ensure_topics
from rollbus.streams.operate.forget import RootedEpisode, exclusions
from rollbus.streams.replay.kafka.run import Replay
from rollbus.streams.replay.plan.range import Bound
from rollbus.streams.replay.plan.range_on_broker import resolve
from rollbus.streams.rewards.registry import BUILT_IN
from tests.builders import make_config, make_episode, make_group, make_tick
from tests.services.commands import say
from tests.services.replay.live import (
    SIGNING_SETTINGS,
    frames,
    publish,
    settings_of,
    traffic,
    until_settled,
    workers,
    write_settings,
)
from tests.services.replay.test_live import MADE_BY, drops, plan
from tests.services.streams.fixtures import send
from tests.services.streams.test_poison import by_hand
from tests.streams.exactly_once.poison import mutate_frame

pytestmark = pytest.mark.services

SETTLED_TOPICS = ["trajectories", "scores", "run-log", "batches", "drops"]


FORGED_RECORDS = (
    make_tick(2**40, stream_time_ms=2**53),
    make_config("assembly", AssemblyConfig(target_model="nobody")),
    *exclusions([RootedEpisode(f"e{number}", f"e{number}") for number in range(30)], reason="", now_ms=0),
)
"""What a producer has no right to say."""


def poison() -> list[tuple[bytes | None, bytes | None]]:
    """Of each kind: unreadable, of a person's key, forged, and refused by the stage with and without a key."""
    misplaced = encode(make_group("g"))
    chance, bad = random.Random(5), [encode(event) for event in make_episode("bad", turns=2)]
    fuzz = [(b"bad", mutate_frame(bad, chance)) for _ in range(300)]
    return [
        *by_hand(),
        (b"k", misplaced),
        (None, misplaced),
        *fuzz,
        *((b"k", encode(record)) for record in FORGED_RECORDS for _ in range(5)),
    ]


async def letters(settings: StreamSettings) -> Counter[DeadLetter]:
    """All dead letters of a namespace."""
    dead_letters = await read_dead_letters(settings.kafka, settings.namespace)
    return Counter(replace(letter, app_version="") for letter in dead_letters)


async def assembled_of(settings: StreamSettings) -> Counter[bytes]:
    """What assembly wrote, whatever its order: poison stands under keys of other partitions than its episode's."""
    frames_by_partition = await frames(settings, "trajectories")
    decoded = [decode(value) for partition in frames_by_partition for _, value in frames_by_partition[partition]]
    return Counter(encode(record) for record in decoded if isinstance(record, MADE_BY["assembly"]))


async def test_a_replay_refuses_what_live_refused_and_comes_to_the_same(
    kafka: str, namespace: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write_settings(tmp_path, kafka, namespace, signing=SIGNING_SETTINGS)
    settings = settings_of(path)
    stream = settings.stream_settings()
    await ensure_topics(stream, all_stages(settings))
    events, bad = traffic(7, 30), poison()
    async with workers(path, tmp_path, 1):
        publishing = asyncio.create_task(publish(stream, events, chunks=8, pause_s=0.4))
        for first in range(0, len(bad), 40):
            await send(stream, EPISODE_EVENTS.name, bad[first : first + 40])
            await asyncio.sleep(0.3)
        await publishing
        await until_settled(stream, all_stages(settings), SETTLED_TOPICS)
    name = namespace.strip(".")
    live = await letters(stream)
    assert len(live) > 100
    assert sum(letter.error_class == "UntrustedRecordError" for letter in live.elements()) >= 5 * len(FORGED_RECORDS)
    assert any(isinstance(decode(data), Trajectory) for _, data in (await frames(stream, "trajectories"))[0])

    assert (await resolve(stream, EPISODE_EVENTS, Bound(tick=2**39), Bound())).empty, "a forged tick bounds no range"
    assert not (await resolve(stream, EPISODE_EVENTS, Bound(tick=5), Bound())).empty

    whole = Replay(stream, plan(settings, f"{name}-all"), registry=BUILT_IN)
    manifest = await whole.run()
    assert await assembled_of(whole.replay_settings) == await assembled_of(stream)
    assert await drops(whole.replay_settings, "assembly") == await drops(stream, "assembly")
    (assembled,) = (digest for digest in manifest.digests if digest.stage == "assembly")
    assert assembled.dead_letters == sum(live.values())
    assert await letters(whole.replay_settings) == live
    again = await Replay(stream, plan(settings, f"{name}-again"), registry=BUILT_IN, processes=3).run(dry_run=True)
    assert again.digests == manifest.digests
    assert "dead letter stage=" not in capfd.readouterr().err

    def cli(*words: str, at: str = namespace) -> str:
        return say(path, *words, ROLLBUS_NAMESPACE=at)

    caplog.clear()
    output = await asyncio.to_thread(cli, "replay", "--from", "earliest", "--as", f"{name}-cli", "--diff", "live")
    assert f"{sum(live.values())} dead letters" in output
    assert not re.search(r"(trajectory|score) +(changed|only)", output)
    assert "dead letter stage=" not in caplog.text
    replay_namespace = f"replay-{name}-cli.{namespace}"
    assert f"`ROLLBUS_NAMESPACE={replay_namespace} rollbus dead-letters list` shows them" in output
    listed = await asyncio.to_thread(cli, "dead-letters", "list", at=replay_namespace)
    assert listed == await asyncio.to_thread(cli, "dead-letters", "list")
    assert f"dead_letters={sum(live.values())}" in await asyncio.to_thread(cli, "replay", "show", f"{name}-cli")
