"""On a real broker: groups larger than a fetch are judged, admitted and batched, as smaller ones are."""

from collections.abc import Sequence

import pytest

from rollbus.consumers.dead_letters_kafka import read_dead_letters
from rollbus.schemas.codec import encode
from rollbus.schemas.limits import FETCH_BYTES
from rollbus.schemas.records.config import (
    AssemblyConfig,
    BatchingConfig,
    GroupingConfig,
    RewardConfig,
    RunConfig,
    ScoringConfig,
)
from rollbus.schemas.records.groups import ClosedGroup, Group
from rollbus.schemas.records.trajectories import Trajectory
from rollbus.schemas.topics import BATCHES, CLOSED_GROUPS, EPISODE_EVENTS, RUN_LOG
from rollbus.streams.kafka.topics_on_broker import ensure_topics
from rollbus.streams.pipeline import namespace_stages, run_stages
from rollbus.streams.rewards.contract import RewardContext, RewardFunction
from rollbus.streams.rewards.registry import BUILT_IN
from rollbus.streams.state.ticker import config_applied
from tests.builders import make_episode
from tests.services.streams.fixtures import read_topic, send, stream_settings
from tests.services.streams.process import running
from tests.waiting import until_found

pytestmark = pytest.mark.services

LONG = "component " * 100_000
"""The name of a component is in every member: with four of them a group is larger than what a consumer asks for."""
NAMES = ("e1", "e2", "e3", "e4")


def counts(trajectory: Trajectory, context: RewardContext) -> float:
    return float(NAMES.index(trajectory.episode_id))


def orders(group: Sequence[Trajectory], context: RewardContext) -> list[float | None]:
    return [float(NAMES.index(member.episode_id)) for member in group]


REGISTRY = {
    **BUILT_IN,
    "counts": RewardFunction(counts, quick=True),
    "orders": RewardFunction(orders, per="group", quick=True),
}
RUN = RunConfig(
    grouping=GroupingConfig(group_size=4, rewards=(RewardConfig(type="orders", name=LONG.upper()),)),
    batching=BatchingConfig(groups_per_step=1),
)


async def test_groups_larger_than_a_fetch_are_judged_admitted_and_batched(kafka: str, namespace: str) -> None:
    settings = stream_settings(kafka, namespace)
    scoring = ScoringConfig(rewards=(RewardConfig(type="counts", name=LONG),))
    stages = namespace_stages(AssemblyConfig(), scoring, registry=REGISTRY)
    stages += run_stages(RUN, registry=REGISTRY, partitions=settings.event_partitions)
    await ensure_topics(settings, stages)
    configs = [config_applied(stage, RUN.run_id, RUN) for stage in ("grouping", "group-scoring", "curriculum")]
    async with running(settings, stages, configs):
        events = [event for name in NAMES for event in make_episode(name)]
        await send(settings, EPISODE_EVENTS.name, [(event.root_episode_id.encode(), encode(event)) for event in events])
        batches = await until_found(lambda: read_topic(settings, BATCHES.name, 1), "no batch comes")
    closed = [
        topic_record
        for topic_record in await read_topic(settings, CLOSED_GROUPS.name)
        if isinstance(topic_record, ClosedGroup)
    ]
    judged = [
        topic_record for topic_record in await read_topic(settings, RUN_LOG.name, 1) if isinstance(topic_record, Group)
    ]
    assert all(len(encode(record)) > FETCH_BYTES for record in (*closed, *judged, *batches))
    assert [batch.groups for batch in batches] == [tuple(judged)]
    assert [closed_group.group.group_id for closed_group in closed] == [judged[0].group_id]
    assert sorted(member.reward for member in judged[0].members) == [0.0, 2.0, 4.0, 6.0]
    assert await read_dead_letters(settings.kafka, namespace) == []
