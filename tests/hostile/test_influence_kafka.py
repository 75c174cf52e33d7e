"""Who may speak tries to move more than its own, as it was done: through a broker, a real worker and a real sink."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from itertools import count, islice
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from rollbus.consumers.clickhouse.questions.saved_questions import ask
from rollbus.consumers.clickhouse.store.settings import SinkSettings
from rollbus.runtime.kafka.decisions import read_decisions
from rollbus.schemas.codec import encode
from rollbus.schemas.ids import trajectory_id
from rollbus.schemas.records.config import (
    AssemblyConfig,
    BatchingConfig,
    DeliveryConfig,
    GroupingConfig,
    RewardConfig,
    RunConfig,
    ScoringConfig,
)
from rollbus.schemas.records.control import Tick
from rollbus.schemas.records.delivery import EpisodeObserved, PolicyDecision, is_drawn, route
from rollbus.schemas.records.groups import Group, StepOutcome, TrainingBatch
from rollbus.schemas.records.trajectories import Score, Trajectory
from rollbus.schemas.topics import BATCHES, DELIVERY_LOG, EPISODE_EVENTS, RUN_LOG, SCORES, TRAJECTORIES
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics_on_broker import ensure_topics
from rollbus.streams.pipeline import namespace_stages, run_stages
from rollbus.streams.stages.delivery.state import HEARD_MS
from rollbus.streams.state.ticker import config_applied
from tests.builders import make_episode, make_reward, make_version
from tests.hostile.attacker import KEY, keys
from tests.services.clickhouse.sink_fixtures import run_until_written, sink_settings
from tests.services.streams.fixtures import read_topic, send, stream_settings
from tests.services.streams.process import running
from tests.waiting import many, until_found

__all__ = ["sink_settings"]
pytestmark = pytest.mark.services

SIGNING = keys(KEY, principals="the-key-of-all-principals")
YEAR_2100_MS = 4_102_444_800_000
HOUR_MS = 3_600_000
THUMBS = ScoringConfig(rewards=(RewardConfig(type="feedback", name="thumbs"),))


def signed_settings(sink: SinkSettings) -> StreamSettings:
    """The worker's settings of the sink's namespace, with the keys of owner and principals."""
    settings = stream_settings(sink.kafka.bootstrap_servers, sink.namespace)
    return settings.model_copy(update={"signing": SIGNING})


async def record(settings: StreamSettings, principal: str, events: Iterable[Any]) -> int:
    """Send events as a principal, as its door signs them; return their bytes."""
    topic, total = EPISODE_EVENTS.full_name(settings.namespace), 0
    async with AIOKafkaProducer(**settings.kafka.client_options(), enable_idempotence=True, linger_ms=5) as producer:
        pending = []
        for event in events:
            key, value = event.root_episode_id.encode(), encode(event)
            headers = SIGNING.sign(principal, topic, key, value)
            pending.append(await producer.send(topic, value, key=key, headers=headers))
            total += len(value)
        await asyncio.gather(*pending)
    return total


async def until_records(settings: StreamSettings, topic: str, kind: type, number: int, *, partitions: int) -> list[Any]:
    """Wait until a topic holds so many records of a kind; return them."""

    async def look() -> list[Any]:
        return [record for record in await read_topic(settings, topic, partitions) if isinstance(record, kind)]

    return await until_found(look, f"{number} of {kind.__name__} do not come", is_enough=many(number), every_s=0.3)


# One source in all of a step

FLOODED_RUN = RunConfig(
    grouping=GroupingConfig(group_size=8), batching=BatchingConfig(groups_per_step=2, max_waiting_groups=20)
)


def groups_of(name: str, numbers: range) -> list[Any]:
    """Events of groups of eight: every other episode is good."""
    events: list[Any] = []
    for group in numbers:
        start = {"group_id": f"{name}-{group}", "group_size": 8, "example_id": None, "labels": {"user": name}}
        for place in range(8):
            events += make_episode(f"{name}-{group}-{place}", reward=float(place % 2), start=start)
    return events


async def test_a_flood_of_one_source_drops_only_its_own_members(
    sink_settings: SinkSettings,
) -> None:
    """One label's value was 16 of 16 members in 10 of 13 batches."""
    settings = signed_settings(sink_settings)
    stages = namespace_stages(AssemblyConfig(), ScoringConfig()) + run_stages(FLOODED_RUN)
    await ensure_topics(settings, stages)
    async with running(settings, stages):
        await record(settings, "flood", groups_of("flood", range(2)))
        await until_records(settings, BATCHES.name, TrainingBatch, 1, partitions=1)
        await record(settings, "agent-7", groups_of("honest", range(10)))
        await until_records(settings, RUN_LOG.name, Group, 12, partitions=1)
        await record(settings, "flood", groups_of("flood", range(2, 30)))
        await until_records(settings, RUN_LOG.name, Group, 40, partitions=1)
        for number in range(11):
            batches = await until_records(settings, BATCHES.name, TrainingBatch, number + 1, partitions=1)
            await send(settings, RUN_LOG.name, [(b"main", encode(skip(batches[number])))])
    members = [Counter(member.principal for group in batch.groups for member in group.members) for batch in batches]
    assert members == [Counter(flood=16), *[Counter({"agent-7": 8, "flood": 8})] * 10]
    await run_until_written(sink_settings)
    dropped = "SELECT reason, count() FROM drops WHERE unit = 'group' GROUP BY reason ORDER BY reason"
    assert rows_of(sink_settings, dropped) == [("source_share", 18)]
    of_agent = "SELECT count() FROM drops WHERE unit = 'group' AND detail LIKE '%honest%'"
    assert rows_of(sink_settings, of_agent) == [(0,)]
    by_principal = "SELECT principal, count() FROM group_members FINAL GROUP BY principal ORDER BY principal"
    assert rows_of(sink_settings, by_principal) == [("agent-7", 80), ("flood", 240)]


def skip(batch: TrainingBatch) -> StepOutcome:
    """Answer as a trainer that frees a batch's place without new weights."""
    return StepOutcome(
        run_id=batch.run_id,
        step=batch.number,
        batch_hash=batch.batch_hash,
        batch_number=batch.number,
        state="skipped",
        base_version=0,
        policy_version=0,
    )


def rows_of(sink: SinkSettings, sql: str) -> list[tuple[Any, ...]]:
    """What ClickHouse answers."""
    return [tuple(row) for row in ask(sink.clickhouse, sql).rows]


# A reward's stated time


async def test_a_report_from_the_year_2100_does_not_outrank_later_ones(sink_settings: SinkSettings) -> None:
    settings = signed_settings(sink_settings)
    stages = namespace_stages(AssemblyConfig(), THUMBS)
    await ensure_topics(settings, stages)

    def thumbs(episode: str, value: float | None, key: str, at_ms: int, **fields: Any) -> Any:
        return make_reward(episode, value, name="thumbs", key=key, source="user", at_ms=at_ms, **fields)

    async with running(settings, stages):
        (tick, *_) = await until_records(settings, EPISODE_EVENTS.name, Tick, 1, partitions=2)
        now_ms = tick.stream_time_ms
        for episode in ("late-word", "silence"):
            await record(settings, "agent-7", make_episode(episode, reward=None))
        await until_records(settings, TRAJECTORIES.name, Trajectory, 2, partitions=2)
        reports = (
            thumbs("late-word", -1.0, "forged", YEAR_2100_MS),
            thumbs("silence", 0.25, "before", now_ms - HOUR_MS),
            thumbs("silence", None, "silent", YEAR_2100_MS, retracted=True),
            thumbs("late-word", 1.0, "honest", now_ms - HOUR_MS),
            thumbs("silence", 0.5, "after", now_ms - HOUR_MS),
        )
        for report in reports:
            await record(settings, "web-1", [report])

        async def look() -> dict[str, Any]:
            scores = [record for record in await read_topic(settings, SCORES.name) if isinstance(record, Score)]
            return {score.episode_id: score.value for score in sorted(scores, key=lambda score: score.revision)}

        await until_found(look, "no report counts", is_enough={"late-word": 1.0, "silence": 0.5}.__eq__)
    await run_until_written(sink_settings)
    newest = "SELECT episode_id, argMax(value, revision), count() FROM scores FINAL GROUP BY episode_id ORDER BY 1"
    assert [row[:2] for row in rows_of(sink_settings, newest)] == [("late-word", 1.0), ("silence", 0.5)]
    statement = (
        "SELECT countIf(in_force), uniqExact(event_id) FROM trajectory_rewards FINAL WHERE value IN (-1, 1, 0.5)"
    )
    assert rows_of(sink_settings, statement) == [(3, 3)]


# Ids that are chosen for a canary

CANARY = RunConfig(delivery=DeliveryConfig(steps=(0.5,), min_episodes=100, margin=0.6, wait_ms=0, metrics=()))
RUN_STAGES = ("grouping", "curriculum", "observing", "delivery")
CHOSEN_EPISODES, HONEST_EPISODES = 200, 300


async def test_ids_chosen_for_a_canary_do_not_stop_it(sink_settings: SinkSettings) -> None:
    """With 2 % chosen ids a canary that was better by 5 points was quarantined."""
    settings = signed_settings(sink_settings)
    stages = namespace_stages(AssemblyConfig(), ScoringConfig()) + run_stages(CANARY)
    await ensure_topics(settings, stages)
    configs = [config_applied(stage, CANARY.run_id, CANARY) for stage in RUN_STAGES]
    configs += [
        config_applied("assembly", None, AssemblyConfig()),
        config_applied("scoring", None, ScoringConfig()),
    ]
    async with running(settings, stages, configs):
        versions = (make_version(0, state="serving"), make_version(1, 0, state="candidate"))
        await send(settings, DELIVERY_LOG.name, [(b"main", encode(version)) for version in versions])
        canary = await until_decided(settings, "canary")
        heard_ms = canary.decided_at_ms + HEARD_MS

        async def is_heard() -> bool:
            records = await read_topic(settings, EPISODE_EVENTS.name)
            heard = [tick for tick in records if isinstance(tick, Tick) and tick.stream_time_ms > heard_ms]
            return len(heard) >= 4

        await until_found(is_heard, "time does not pass")
        chosen = list(
            islice((name for name in names("x") if is_drawn("agent", 1, name, canary.share)), CHOSEN_EPISODES)
        )
        await record(settings, "stranger", episodes(chosen, version=1, reward=0.0))
        await until_records(settings, DELIVERY_LOG.name, EpisodeObserved, CHOSEN_EPISODES, partitions=1)
        honest = list(islice(names("e"), HONEST_EPISODES))
        routed = [event for name in honest for event in episodes([name], version=route(canary, name) or 0, reward=1.0)]
        await record(settings, "agent-7", routed)
        await until_records(
            settings, DELIVERY_LOG.name, EpisodeObserved, CHOSEN_EPISODES + HONEST_EPISODES, partitions=1
        )
        last = await until_decided(settings, "promote")
    by_chance = sum(route(canary, name) == 1 for name in chosen)
    numbers = last.numbers
    assert numbers["strayed"] == CHOSEN_EPISODES - by_chance
    of_stranger = CHOSEN_EPISODES - numbers["strayed"] - numbers["unbalanced"]
    assert of_stranger < 0.2 * CHOSEN_EPISODES, numbers
    decisions = await read_decisions(settings.kafka, settings.namespace, "agent")
    assert "quarantine" not in {decision.action for decision in decisions}
    await run_until_written(sink_settings)
    brought = "SELECT principal, uniqExact(trajectory_id) FROM trajectories FINAL GROUP BY principal ORDER BY principal"
    assert rows_of(sink_settings, brought) == [("agent-7", HONEST_EPISODES), ("stranger", CHOSEN_EPISODES)]
    assert len({trajectory_id(name) for name in (*chosen, *honest)}) == CHOSEN_EPISODES + HONEST_EPISODES


def names(prefix: str) -> Iterable[str]:
    """Ids of episodes, without end."""
    return (f"{prefix}{number}" for number in count())


def episodes(ids: Iterable[str], *, version: int, reward: float) -> list[Any]:
    """Events of episodes that a version answered."""
    return [event for name in ids for event in make_episode(name, version=version, reward=reward)]


async def until_decided(settings: StreamSettings, action: str) -> PolicyDecision:
    """Wait for a decision and return it."""

    async def look() -> list[PolicyDecision]:
        decisions = await read_decisions(settings.kafka, settings.namespace, "agent")
        return [decision for decision in decisions if decision.action == action]

    return (await until_found(look, f"no decision {action} comes"))[-1]
