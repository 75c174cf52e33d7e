"""On a real broker: sub-agents' episodes that nobody rewards reach a batch by their roots' rewards."""

import asyncio
from typing import Any

import pytest

from rollbus.schemas.codec import encode
from rollbus.schemas.records.config import (
    AssemblyConfig,
    BatchingConfig,
    FilterConfig,
    GroupingConfig,
    RunConfig,
    ScoringConfig,
)
from rollbus.schemas.records.control import Tick
from rollbus.schemas.records.groups import TrainingBatch
from rollbus.schemas.topics import BATCHES, EPISODE_EVENTS, SCORES
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics_on_broker import ensure_topics
from rollbus.streams.pipeline import namespace_stages, run_stages
from tests.builders import make_episode, make_reward
from tests.services.stream_fixtures import read_topic, send, stream_settings
from tests.services.stream_process import running

pytestmark = pytest.mark.services

RUN = RunConfig(
    filter=FilterConfig(agents=("helper",)),
    grouping=GroupingConfig(group_size=2, feedback_tasks=("play",), reward_grace_ms=3_000),
    batching=BatchingConfig(groups_per_step=1),
)


async def test_children_without_a_reward_of_their_own_reach_a_batch(kafka: str, namespace: str) -> None:
    settings = stream_settings(kafka, namespace)
    stages = namespace_stages(AssemblyConfig(pass_down={"reward": "inherit"}), ScoringConfig()) + run_stages(RUN)
    await ensure_topics(settings, stages)
    events: list[Any] = []
    for root, value in (("r1", 1.0), ("r2", 0.25)):
        start = {"parent_episode_id": root, "agent": "helper"}
        events += make_episode(f"{root}-child", root=root, reward=None, start=start)
        events += [*make_episode(root, reward=None), make_reward(root, value, key=root, writer="user")]
    async with running(settings, stages), asyncio.timeout(120):
        while not await _ticked(settings):  # noqa: ASYNC110 - before the first tick no grace is counted
            await asyncio.sleep(0.1)
        await send(settings, EPISODE_EVENTS.name, [(event.root_episode_id.encode(), encode(event)) for event in events])
        while not (batches := await _batches(settings)):  # noqa: ASYNC110 - looks at a topic
            await asyncio.sleep(0.2)
    ((group,),) = [batch.groups for batch in batches]
    assert {member.episode_id: member.reward for member in group.members} == {"r1-child": 1.0, "r2-child": 0.25}


async def _ticked(settings: StreamSettings) -> bool:
    return sum(isinstance(one, Tick) for one in await read_topic(settings, SCORES.name)) >= settings.event_partitions


async def _batches(settings: StreamSettings) -> list[TrainingBatch]:
    return [one for one in await read_topic(settings, BATCHES.name, 1) if isinstance(one, TrainingBatch)]
