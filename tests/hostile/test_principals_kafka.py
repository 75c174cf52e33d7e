"""Two agents with tokens of their own and a stranger without, through the SDK, a broker and a real worker."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rollbus.producers import init
from rollbus.runtime.principals import endings, issue, root_of
from rollbus.schemas.records.config import AssemblyConfig, ScoringConfig
from rollbus.schemas.records.drops import Drop
from rollbus.schemas.records.trajectories import RewardRevised, Trajectory
from rollbus.schemas.topics import DROPS, TRAJECTORIES
from rollbus.streams.kafka.topics_on_broker import ensure_topics
from rollbus.streams.pipeline import namespace_stages
from tests.hostile.attacker import KEY, keys
from tests.services.streams.fixtures import read_topic, stream_settings
from tests.services.streams.process import running

pytestmark = pytest.mark.services

REPORTS, ROOM = 1_000, 300


def report(bootstrap_servers: str, namespace: str, agents: str, strangers: str) -> None:
    """An agent records an episode; another one reports on it as often as it can, and over the agent's head."""
    agent = init(bootstrap_servers=bootstrap_servers, namespace=namespace, producer="agent", token=agents)
    with agent.episode(task="play") as episode:
        earlier = episode.reward(1.0, name="thumbs")
    assert agent.close()
    stranger = init(bootstrap_servers=bootstrap_servers, namespace=namespace, producer="agent", token=strangers)
    for number in range(REPORTS):
        stranger.feedback(episode=episode.id, key=f"k{number}", name="thumbs", reward=-1.0, source="agent")
    stranger.feedback(episode=episode.id, key="over", name="thumbs", reward=-1.0, source="agent", supersedes=earlier)
    assert stranger.close()


async def test_a_strangers_thousand_reports_cost_only_their_own_rows(
    kafka: str, namespace: str, tmp_path: Path
) -> None:
    now = datetime.now(UTC)
    agents, strangers = (issue(tmp_path, name, ("record", "feedback"), now) for name in ("agent-7", "stranger"))
    signing = keys(KEY, principals=root_of(tmp_path).decode(), ended=endings(tmp_path))
    settings = stream_settings(kafka, namespace).model_copy(update={"signing": signing})
    stages = namespace_stages(AssemblyConfig(max_reports_per_name=ROOM), ScoringConfig())
    await ensure_topics(settings, stages)
    async with running(settings, stages):
        await asyncio.to_thread(report, kafka, namespace, agents, strangers)
        async with asyncio.timeout(120):
            while True:
                drops = [drop for drop in await read_topic(settings, DROPS.name) if isinstance(drop, Drop)]
                records = await read_topic(settings, TRAJECTORIES.name)
                revisions = [record for record in records if isinstance(record, RewardRevised)]
                in_force = len(revisions[-1].rewards) if revisions else 0
                if len(drops) == REPORTS + 1 - ROOM and in_force == ROOM + 1:
                    break
                await asyncio.sleep(0.5)
    assert {drop.reason for drop in drops} == {"too_many_reports"}
    assert sum(len(revised.new) + len(revised.withdrawn) for revised in revisions) == ROOM
    assert len(revisions) < 30, "one for each tick at most"
    (trajectory,) = [record for record in records if isinstance(record, Trajectory)]
    assert trajectory.principal == "agent-7"
    first, *others = revisions[-1].rewards
    assert (first.value, first.principal) == (1.0, "agent-7")
    assert {reward.principal for reward in others} == {"stranger"}
