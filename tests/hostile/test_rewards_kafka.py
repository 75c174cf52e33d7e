"""A checker with a key, a forger without one and a thief with another's, through the SDK and a real worker."""

import asyncio
import itertools

import pytest

from rollbus.producers import init
from rollbus.schemas.records.config import AssemblyConfig, ScoringConfig
from rollbus.schemas.records.drops import Drop
from rollbus.schemas.records.trajectories import RewardRevised, Trajectory
from rollbus.schemas.topics import DROPS, TRAJECTORIES
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics_on_broker import ensure_topics
from rollbus.streams.pipeline import namespace_stages
from tests.hostile.attacker import CHECKERS_KEY, SIGNING, STOLEN
from tests.services.streams.fixtures import read_topic, stream_settings
from tests.services.streams.process import running

pytestmark = pytest.mark.services

CONFIG = AssemblyConfig(reward_sources={"correct": ("checker",)}, signed_sources=("checker",))


def report(bootstrap_servers: str, namespace: str) -> None:
    """Record an episode; then a forger, a thief and the checker say what it is worth, by id and by alias."""
    agent = init(bootstrap_servers=bootstrap_servers, namespace=namespace, producer="agent")
    with agent.episode(task="play") as episode:
        episode.alias("order-7")
    assert agent.close()
    for key, value, said_as in ((None, -1.0, "1"), (STOLEN, -2.0, "2"), (CHECKERS_KEY, 1.0, "1")):
        keys = {"checker": key} if key else None
        recorder = init(bootstrap_servers=bootstrap_servers, namespace=namespace, reward_keys=keys)
        recorder.feedback(episode=episode.id, key=said_as, name="correct", reward=value, source="checker")
        recorder.feedback(alias="order-7", key=said_as, name="correct", reward=value, source="checker")
        assert recorder.close()


async def test_only_a_checkers_reward_counts_by_id_and_by_alias(kafka: str, namespace: str) -> None:
    settings = stream_settings(kafka, namespace).model_copy(update={"signing": SIGNING})
    stages = namespace_stages(CONFIG, ScoringConfig())
    await ensure_topics(settings, stages)
    async with running(settings, stages):
        await asyncio.to_thread(report, kafka, namespace)
        async with asyncio.timeout(120):
            while True:
                drops = [drop for drop in await read_topic(settings, DROPS.name) if isinstance(drop, Drop)]
                refused = sorted(drop.stage for drop in drops if drop.reason == "reward_not_allowed")
                counted = await rewards(settings)
                if len(refused) >= 4 and max(map(len, counted), default=0) >= 2:
                    break
                await asyncio.sleep(0.5)
    assert set(itertools.chain.from_iterable(counted)) == {("correct", "checker", 1.0)}
    assert refused == ["alias", "alias", "assembly", "assembly"]


async def rewards(settings: StreamSettings) -> list[list[tuple[str, str, float]]]:
    """The rewards that each record of assembly names."""
    records = await read_topic(settings, TRAJECTORIES.name)
    named = [record for record in records if isinstance(record, Trajectory | RewardRevised)]
    return [[(reward.name, reward.source, reward.value) for reward in record.rewards] for record in named]
