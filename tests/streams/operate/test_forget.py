"""Who is forgotten: episodes by label or id, with their sub-agents; open state and open groups let them go."""

from collections.abc import AsyncIterator

import pytest

from rollbus.schemas.codec import encode
from rollbus.schemas.ids import trajectory_id
from rollbus.schemas.records.config import AssemblyConfig, GroupingConfig, RunConfig, ScoringConfig
from rollbus.schemas.topics import DROPS, EPISODE_EVENTS, RUN_LOG, TRAJECTORIES, Topic
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.operate import forget_on_log as forget_kafka
from rollbus.streams.operate.forget import Episode, Search, exclusions
from rollbus.streams.pipeline import namespace_stages, run_stages
from tests.builders import START_MS, make_episode, make_started, make_tick
from tests.flow.in_memory import Flow
from tests.streams.exactly_once.test_transaction_parts import Raw

RUN = RunConfig(grouping=GroupingConfig(group_size=2, window_ms=60_000))


def search(**labels: str) -> Search:
    found = Search(labels)
    found.add_start(make_started("a", labels={"user": "ann", "team": "x"}))
    found.add_start(make_started("b", labels={"user": "bob", "team": "x"}))
    found.add_start(make_started("a-sub", root="a"))
    return found


def test_a_label_finds_the_episode_and_what_belongs_to_it() -> None:
    assert search(user="ann").matching_episodes() == [Episode("a", "a"), Episode("a-sub", "a")]
    assert search(user="ann", team="y").matching_episodes() == []
    assert [each.episode_id for each in search(team="x").matching_episodes()] == ["a", "a-sub", "b"]


def test_without_labels_nobody_is_found_but_by_id() -> None:
    found = Search({}, frozenset({"b"}))
    found.add_start(make_started("a"))
    found.add_start(make_started("b"))
    assert found.matching_episodes() == [Episode("b", "b")]


def test_attempts_that_repeat_a_persons_opening_are_found_with_it() -> None:
    found = Search({}, frozenset({"a"}))
    found.add_start(make_started("a"))
    for attempt, origin in (("again", "a"), ("other", "b")):
        found.add_start(make_started(attempt, labels={"resampled_from": trajectory_id(origin)}))
    found.add_start(make_started("again-sub", root="again"))
    assert found.matching_episodes() == [Episode("a", "a")]
    assert found.attempts_at(["a"]) == [Episode("again", "again"), Episode("again-sub", "again")]
    assert found.attempts_at(["again"]) == []


def test_forgetting_twice_says_the_same() -> None:
    one, again = (exclusions([Episode("a", "a")], reason="asked", now_ms=now) for now in (1, 2))
    assert one[0].event_id == again[0].event_id


async def forgotten(*, ended: bool) -> Flow:
    """A flow in which e1 is forgotten: open, or closed and in an open group of two."""
    flow = Flow([*namespace_stages(AssemblyConfig(), ScoringConfig()), *run_stages(RUN)])
    await flow.tick(make_tick(0))
    events = make_episode("e1")
    for event in events if ended else events[:2]:
        flow.publish(EPISODE_EVENTS, "e1", event)
    await flow.settle()
    (record,) = exclusions([Episode("e1", "e1")], reason="asked", now_ms=START_MS)
    for _ in range(2):
        flow.publish(EPISODE_EVENTS, "e1", record)
    for name in ("e2", "e3"):
        for event in make_episode(name, reward=float(name == "e2")):
            flow.publish(EPISODE_EVENTS, name, event)
    await flow.settle()
    return flow


async def test_an_open_episode_goes_with_its_events() -> None:
    flow = await forgotten(ended=False)
    assert [trajectory.episode_id for trajectory in flow.records(TRAJECTORIES)
            if hasattr(trajectory, "turns")] == ["e2", "e3"]  # fmt: skip
    assert [(drop.unit_id, drop.reason) for drop in flow.records(DROPS)] == [("e1", "excluded")]


async def test_an_open_group_loses_the_member() -> None:
    flow = await forgotten(ended=True)
    groups = [record for record in flow.records(RUN_LOG) if hasattr(record, "members")]
    assert [sorted(member.episode_id for member in group.members) for group in groups] == [["e2", "e3"]]
    assert [drop.reason for drop in flow.records(DROPS)] == ["excluded"]


async def test_the_log_is_searched_for_episode_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [None, b"not ours", *(encode(make_started(name, labels={"user": "ann"})) for name in "ab")]

    async def read_whole(settings: StreamSettings, topic: Topic) -> AsyncIterator[Raw]:
        for offset, value in enumerate(values):
            yield Raw(offset, value)

    monkeypatch.setattr(forget_kafka, "read_whole", read_whole)
    found = Search({"user": "ann"})
    await forget_kafka.search_log(StreamSettings(), found, lambda count: None)
    assert [each.episode_id for each in found.matching_episodes()] == ["a", "b"]
