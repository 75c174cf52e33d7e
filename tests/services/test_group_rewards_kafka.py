"""On a real broker: attempts are made once though their maker dies, and the full group is judged as a whole."""

import asyncio
import json
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rollbus.producers import MemorySink, init
from rollbus.resample.attempts import Attempt, Resampler
from rollbus.resample.requests import resample
from rollbus.schemas.codec import encode
from rollbus.schemas.records.config import (
    AssemblyConfig,
    GroupingConfig,
    ResampleConfig,
    RewardConfig,
    RunConfig,
    ScoringConfig,
)
from rollbus.schemas.records.control import Tick
from rollbus.schemas.records.groups import Group, ResampleRequested
from rollbus.schemas.records.trajectories import Trajectory
from rollbus.schemas.topics import EPISODE_EVENTS, RESAMPLE_REQUESTS, RUN_LOG, TRAJECTORIES
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics_on_broker import ensure_topics
from rollbus.streams.pipeline import namespace_stages, run_stages
from rollbus.streams.rewards.contract import RewardContext, RewardFunction
from rollbus.streams.rewards.registry import BUILT_IN
from tests.builders import make_episode
from tests.services import resample_maker
from tests.services.stream_fixtures import read_topic, send, stream_settings
from tests.services.stream_process import running

pytestmark = pytest.mark.services

FOUR = 4
Agent = Callable[[Attempt], Awaitable[None]]


def later_is_better(group: Sequence[Trajectory], context: RewardContext) -> list[float | None]:
    """Grade by the place among all members, so that it cannot be known of one alone."""
    names = sorted(one.episode_id for one in group)
    assert all(one.turns for one in group)
    return [float(names.index(one.episode_id)) for one in group]


REGISTRY = {**BUILT_IN, "later": RewardFunction(later_is_better, per="group")}
RUN = RunConfig(
    grouping=GroupingConfig(
        group_size=FOUR, strategy="by_prompt", rewards=(RewardConfig(type="later", name="later", weight=10.0),)
    ),
    resample=ResampleConfig(attempts_per_hour=2 * (FOUR - 1)),
)


async def test_a_killed_maker_doubles_no_attempt_and_the_group_is_judged(
    kafka: str, namespace: str, tmp_path: Path
) -> None:
    settings = stream_settings(kafka, namespace)
    stages = namespace_stages(AssemblyConfig(), ScoringConfig())
    stages += run_stages(RUN, registry=REGISTRY, partitions=settings.event_partitions)
    await ensure_topics(settings, stages)
    calls = Counter[str]()

    async def plays(attempt: Attempt) -> None:
        calls[attempt.episode.id] += 1
        start = {"example_id": None, "resampled": True}
        await _publish(settings, make_episode(attempt.episode.id, reward=1.0, start=start))

    async with running(settings, stages):
        await _until(lambda: _ticks(settings), settings.event_partitions)  # before them nobody pays for an attempt
        await _publish(settings, make_episode("traffic", reward=0.0, start={"example_id": None}))
        await _until(lambda: _count(settings, ResampleRequested), FOUR - 1)
        calls.update(await _begin_one_and_die(settings, tmp_path / "begun"))
        await _make(settings, plays, lambda counts: counts["made"] == FOUR - 2)
        # one attempt is lost with its maker; traffic with the same opening fills its place
        await _publish(settings, make_episode("again", reward=0.0, start={"example_id": None}))
        await _until(lambda: _count(settings, Group), 1)
    assert set(calls.values()) == {1}
    assert len(calls) == FOUR - 1
    (group,) = [one for one in await read_topic(settings, RUN_LOG.name, 1) if isinstance(one, Group)]
    assert sorted(member.components["later"] for member in group.members) == [0.0, 1.0, 2.0, 3.0]
    assert sum(member.resampled for member in group.members) == FOUR - 2
    assert all(member.reward == member.components["later"] * 10 + member.resampled for member in group.members)
    assert len(await read_topic(settings, RESAMPLE_REQUESTS.name, 1)) == FOUR - 1


async def _begin_one_and_die(settings: StreamSettings, file: Path) -> list[str]:
    """Let a process be killed as its agent has begun; return the attempts that it began."""
    arguments = (settings.kafka.bootstrap_servers, settings.namespace, str(file), json.dumps({"die": "begun"}))
    process = await asyncio.create_subprocess_exec(sys.executable, resample_maker.__file__, *arguments)
    assert await asyncio.wait_for(process.wait(), 120) == -signal.SIGKILL
    return (await asyncio.to_thread(file.read_text)).split()


async def _ticks(settings: StreamSettings) -> int:
    """Return how many partitions of trajectories have a tick."""
    numbers = [one.number for one in await read_topic(settings, TRAJECTORIES.name) if isinstance(one, Tick)]
    return numbers.count(0)


async def _make(settings: StreamSettings, agent: Agent, until: Callable[[Counter[str]], bool]) -> None:
    """Make attempts until something has come about."""
    recorder = init(sink=MemorySink())
    resampler = Resampler(agent, recorder, concurrency=1)
    work = asyncio.create_task(resample(settings, RUN.run_id, resampler, stop=asyncio.Event()))
    async with asyncio.timeout(120):
        while not until(resampler.counts):  # noqa: ASYNC110 - looks at what others do
            await asyncio.sleep(0.05)
    for task in (*resampler.under_way(), work):
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    await asyncio.to_thread(recorder.close)


async def _publish(settings: StreamSettings, events: list[Any]) -> None:
    items = [(event.root_episode_id.encode(), encode(event)) for event in events]
    await send(settings, EPISODE_EVENTS.name, items)


async def _count(settings: StreamSettings, kind: type) -> int:
    topic = RESAMPLE_REQUESTS if kind is ResampleRequested else RUN_LOG
    return sum(isinstance(record, kind) for record in await read_topic(settings, topic.name, 1))


async def _until(count: Callable[[], Awaitable[int]], wanted: int) -> None:
    async with asyncio.timeout(120):
        while await count() < wanted:  # noqa: ASYNC110 - looks at a topic
            await asyncio.sleep(0.2)
