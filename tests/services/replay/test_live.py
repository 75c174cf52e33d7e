"""Live with real workers that are killed, then replayed: each stage from its recorded input, all from the events."""

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rollbus.hosted_stages import all_stages
from rollbus.runtime.kafka.writing import partition_of
from rollbus.schemas.codec import decode, encode
from rollbus.schemas.records.groups import CurriculumState, Group, TrainingBatch
from rollbus.schemas.records.trajectories import RewardRevised, Score, Trajectory
from rollbus.streams.kafka.topics_on_broker import ensure_topics
from rollbus.streams.replay.decide.digest import without_location
from rollbus.streams.replay.kafka.run import Replay
from rollbus.streams.replay.plan.plan import ReplayPlan, chain_of
from rollbus.streams.replay.plan.range import Bound
from rollbus.streams.rewards.registry import BUILT_IN
from tests.services.replay.live import (
    SIGNING_SETTINGS,
    frames,
    publish,
    records,
    settings_of,
    traffic,
    until_settled,
    workers,
    write_settings,
)
from tests.waiting import until_found

pytestmark = pytest.mark.services

MADE_BY: dict[str, tuple[type, ...]] = {
    "assembly": (Trajectory, RewardRevised),
    "scoring": (Score,),
    "grouping": (Group,),
    "curriculum": (CurriculumState, TrainingBatch),
}
TOPICS_OF_STAGE: dict[str, tuple[str, ...]] = {
    "assembly": ("trajectories",),
    "scoring": ("scores",),
    "grouping": ("run-log",),
    "curriculum": ("curriculum", "batches"),
}


def input_partition(record: Any, partitions: int, hints: dict[str, str]) -> int:
    """The partition of its stage's input that a record was made of."""
    if isinstance(record, Trajectory | RewardRevised):
        return partition_of(record.episode_id.encode(), partitions)
    if isinstance(record, Group):
        return partition_of(hints[record.members[0].trajectory_id].encode(), partitions)
    return 0


async def outputs(settings: Any, stage: str, hints: dict[str, str]) -> dict[tuple[Any, ...], list[bytes]]:
    """What a stage wrote: bytes without locations, in order, by topic, partition, run, key and input partition.

    Runs are stages of their own that share topics: each one's records are in order, those of two are not.
    """
    rows_by_place: dict[tuple[Any, ...], list[bytes]] = {}
    for topic in TOPICS_OF_STAGE[stage]:
        for partition, values in (await frames(settings, topic)).items():
            for key, value in values:
                record = decode(value)
                if isinstance(record, MADE_BY[stage]):
                    lane = (getattr(record, "run_id", None), key if stage == "grouping" else None)
                    place = (topic, partition, lane, input_partition(record, settings.event_partitions, hints))
                    rows_by_place.setdefault(place, []).append(encode(without_location(record)))
    return rows_by_place


async def drops(settings: Any, stage: str) -> Counter[bytes]:
    partitions = (await frames(settings, "drops")).values()
    decoded = [decode(value) for partition in partitions for _, value in partition]
    return Counter(encode(drop) for drop in decoded if drop.stage == stage)


def plan(settings: Any, name: str, *stages: str, **changes: Any) -> ReplayPlan:
    defaults: dict[str, Any] = {
        "start": Bound(),
        "end": Bound(),
        "stages": chain_of(stages),
        "assembly": settings.assembly,
        "scoring": settings.scoring,
        "runs": settings.runs,
    }
    return ReplayPlan(name=name, **(defaults | changes))


@pytest.mark.faults
async def test_a_replay_of_live_with_killed_workers_is_live_byte_for_byte(
    kafka: str, namespace: str, tmp_path: Path
) -> None:
    path = write_settings(tmp_path, kafka, namespace, signing=SIGNING_SETTINGS)
    settings = settings_of(path)
    stream = settings.stream_settings()
    await ensure_topics(stream, all_stages(settings))
    events = traffic(3, 90)
    async with workers(path, tmp_path, 3) as running_workers:
        publishing = asyncio.create_task(publish(stream, events, chunks=12, pause_s=0.4))
        await until_found(lambda: records(stream, "trajectories"), "no trajectory comes")
        victim = running_workers[0]
        assert victim.process is not None
        os.kill(victim.process.pid, signal.SIGKILL)
        await victim.process.wait()
        await victim.start()
        await publishing
        await until_settled(stream, all_stages(settings), ["trajectories", "scores", "run-log", "batches", "drops"])
    name = namespace.strip(".")
    hints = {score.trajectory_id: score.group_hint for score in await records(stream, "scores")}

    for stage in MADE_BY:
        replay = Replay(stream, plan(settings, f"{name}-{stage}", stage), registry=BUILT_IN)
        manifest = await replay.run()
        assert manifest.state == "complete"
        expected = await outputs(stream, stage, hints)
        assert sum(map(len, expected.values())) > 5
        assert await outputs(replay.replay_settings, stage, hints) == expected
        assert await drops(replay.replay_settings, stage) == await drops(stream, stage)

    whole = Replay(stream, plan(settings, f"{name}-all"), registry=BUILT_IN)
    manifest = await whole.run()
    assert await outputs(whole.replay_settings, "assembly", hints) == await outputs(stream, "assembly", hints)
    assert {digest.stage for digest in manifest.digests} == {
        "assembly", "scoring", "grouping.main", "grouping.alone", "curriculum.main", "curriculum.alone"
    }  # fmt: skip
    again = await Replay(stream, plan(settings, f"{name}-again"), registry=BUILT_IN).run(dry_run=True)
    assert again.digests == manifest.digests
