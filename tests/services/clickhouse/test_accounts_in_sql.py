"""The accounts that ClickHouse gives of a log: every unit of a whole flow is used, dropped or pending, once."""

from typing import Any

import pytest

from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from rollbus.schemas.records.config import (
    AssemblyConfig,
    BatchingConfig,
    GroupingConfig,
    RewardConfig,
    RunConfig,
    ScoringConfig,
)
from rollbus.schemas.topics import ALIASES, DROPS, EPISODE_EVENTS, TOPICS
from rollbus.streams.pipeline import namespace_stages, run_stages
from rollbus.streams.state.stage import PureAsEffects
from tests.builders import START_MS, make_alias, make_episode, make_reward, make_tick
from tests.consumers.story import Record
from tests.flow.in_memory import Flow
from tests.services.clickhouse.test_queries import NAMESPACE, answer, new_database, write
from tests.streams.simulation.judging import REGISTRY
from tests.streams.simulation.trainer import SimulatedTrainer

pytestmark = pytest.mark.services

RUN = RunConfig(
    grouping=GroupingConfig(rewards=(RewardConfig(type="places", name="place", weight=5.0),), window_ms=60_000),
    batching=BatchingConfig(groups_per_step=1),
)
ASSEMBLY = AssemblyConfig(inactivity_ms=20_000, reward_sources={"reward": ("agent",)})


async def filled_flow() -> Flow:
    """Groups that are trained, skipped, fail and fall short; lost, late, forged and unfinished events."""
    stages = [*namespace_stages(ASSEMBLY, ScoringConfig()), *run_stages(RUN, registry=REGISTRY)]
    flow = Flow([*stages, PureAsEffects(SimulatedTrainer())], partitions=2)
    await flow.tick(make_tick(0))
    sizes = {"trained": 2, "skipped": 2, "crowd": 3, "short": 1}
    for group, size in sizes.items():
        for attempt in range(size):
            start = {"group_id": group, "group_size": max(2, size), "example_id": None}
            publish(flow, make_episode(f"{group}-{attempt}", reward=float(attempt), start=start))
            await flow.settle()
    publish(flow, make_episode("holes")[:1] + make_episode("holes")[2:])
    publish(flow, make_episode("startless")[1:])
    publish(flow, [make_reward("trained-0", 9.0, key="forged", source="stranger")])
    flow.publish(ALIASES, "order", make_alias("order", "trained-0"))
    for second in range(1, 5):
        await flow.tick(make_tick(second, stream_time_ms=START_MS + second * 25_000))
    publish(flow, [make_episode("trained-0", turns=2)[2]])  # late, and known with other content
    publish(flow, make_episode("open")[:2])
    await flow.settle()
    return flow


def publish(flow: Flow, events: list[Any]) -> None:
    for event in events:
        flow.publish(EPISODE_EVENTS, event.root_episode_id, event)


async def test_every_unit_is_used_dropped_or_pending_once(clickhouse: tuple[str, int]) -> None:
    flow = await filled_flow()
    records: list[Record] = [(topic.name, "", record) for topic in TOPICS for record in flow.records(topic)]
    settings = new_database(clickhouse)
    for delivery in range(2):
        write_all(settings, records, first_offset=delivery * 10_000)
    rows = {row["unit"]: row for row in answer(settings, "accounts")}
    assert list(rows) == ["event", "episode", "trajectory", "group"]
    for row in rows.values():
        assert row["emitted"] == row["used"] + row["dropped"] + row["pending"]
        assert row["both_ways"] == 0
        assert sum(row["dropped_by_reason"].values()) == row["dropped"]
    assert_as_in_the_flow(flow, rows)
    other = {row["unit"]: row for row in answer(settings, "accounts", run="other")}
    assert other["trajectory"]["pending"] == other["trajectory"]["emitted"] == rows["trajectory"]["emitted"]


def write_all(settings: ClickHouseSettings, records: list[Record], first_offset: int) -> None:
    client = ClickHouse(settings)
    write(client, NAMESPACE, records, first_offset=first_offset)
    client.close()


def assert_as_in_the_flow(flow: Flow, rows: dict[str, Any]) -> None:
    account_by_unit = {
        unit: (row["emitted"], row["used"], row["dropped"], row["pending"]) for unit, row in rows.items()
    }
    assert account_by_unit["trajectory"] == (9, 2, 7, 0)
    assert rows["trajectory"]["dropped_by_reason"] == {
        "rejected_by_backend": 2,
        "score_failed": 3,
        "incomplete_group": 1,
        "missing_events": 1,
    }
    assert account_by_unit["group"] == (4, 1, 3, 0)
    assert account_by_unit["episode"] == (11, 9, 1, 1)
    assert rows["episode"]["dropped_by_reason"] == {"missing_events": 1}
    event_records = [*flow.records(EPISODE_EVENTS), *flow.records(ALIASES)]
    events = {event.event_id for event in event_records if hasattr(event, "event_id")}
    assert account_by_unit["event"][0] == len(events)
    assert account_by_unit["event"][3] == 2
    dropped = {(drop.unit, drop.reason) for drop in flow.records(DROPS)}
    assert ("event", "reward_not_allowed") in dropped
    assert rows["event"]["dropped_by_reason"]["reward_not_allowed"] == 1
