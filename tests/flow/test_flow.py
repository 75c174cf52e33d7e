"""From events to batches, all stages together: nothing lost, nothing twice, and every fate told."""

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbus.schemas.records.config import (
    AssemblyConfig,
    BatchingConfig,
    CurriculumConfig,
    FilterConfig,
    GroupingConfig,
    RunConfig,
    ScoringConfig,
)
from rollbus.schemas.records.drops import Drop
from rollbus.schemas.records.groups import Group, TrainingBatch
from rollbus.schemas.records.trajectories import Trajectory
from rollbus.schemas.topics import ALIASES, BATCHES, CURRICULUM, DROPS, EPISODE_EVENTS, RUN_LOG, SCORES, TRAJECTORIES
from rollbus.streams.pipeline import namespace_stages, run_stages
from tests.builders import START_MS, make_alias, make_alias_reward, make_episode, make_outcome, make_reward, make_tick
from tests.flow.in_memory import Flow
from tests.flow.reference import expect

ASSEMBLY = AssemblyConfig(inactivity_ms=60_000, gap_grace_ms=60_000)
RUN = RunConfig(grouping=GroupingConfig(group_size=3), batching=BatchingConfig(groups_per_step=2))


def make_flow(*runs: RunConfig, partitions: int = 2, assembly: AssemblyConfig = ASSEMBLY) -> Flow:
    stages = namespace_stages(assembly, ScoringConfig())
    for run in runs or (RUN,):
        stages += run_stages(run)
    return Flow(stages, partitions=partitions)


def attempts(groups: int, size: int = 3) -> list[Any]:
    """Episodes of explicit groups; the rewards of a group differ."""
    return [
        event
        for group in range(groups)
        for attempt in range(size)
        for event in make_episode(
            f"e{group}-{attempt}",
            reward=float(attempt),
            start={"group_id": f"g{group}", "group_size": size, "example_id": None},
        )
    ]


async def pour(flow: Flow, events: list[Any], *, at_most: int | None = None) -> None:
    """Publish events, and let all time pass that anything could wait for."""
    for event in events:
        flow.publish(EPISODE_EVENTS, event.root_episode_id, event)
    await flow.settle(at_most)
    for minute in range(1, 16):
        await flow.tick(make_tick(minute, stream_time_ms=START_MS + minute * 60_000))


async def train(flow: Flow) -> list[TrainingBatch]:
    """Answer every batch as a trainer would; return those answered."""
    done: list[TrainingBatch] = []
    while len(batches := flow.records(BATCHES)) > len(done):
        batch = batches[len(done)]
        flow.publish(RUN_LOG, "main", make_outcome(batch, step=len(done) + 1, base=len(done)))
        await flow.settle()
        done.append(batch)
    return done


def fates(flow: Flow, run_id: str = "main") -> Counter[str]:
    """How often each trajectory has been given a fate by a batch or a drop of the run."""
    found = [
        member.trajectory_id
        for batch in flow.records(BATCHES)
        if batch.run_id == run_id
        for group in batch.groups
        for member in group.members
    ]
    dropped = [one for drop in flow.records(DROPS) if drop.run_id == run_id for one in drop.trajectory_ids]
    return Counter(found + dropped)


def assert_as_expected(flow: Flow, events: list[Any]) -> None:
    expected = expect(events)
    trajectories = flow.records(TRAJECTORIES)
    assert Counter(one.trajectory_id for one in trajectories if isinstance(one, Trajectory)) == Counter(
        expected.trajectories
    )
    groups: Any = {
        group.group_key.removeprefix("group:"): {
            member.trajectory_id: (member.reward, pytest.approx(member.advantage)) for member in group.members
        }
        for group in flow.records(RUN_LOG)
        if isinstance(group, Group)
    }
    assert groups == expected.groups
    found: Counter[tuple[str, str]] = Counter()
    for drop in flow.records(DROPS):
        if drop.run_id is not None:
            found.update((drop.reason, name) for name in drop.trajectory_ids)
        elif drop.reason == "missing_events" and drop.detail == "no EpisodeStarted":
            found[drop.reason, drop.unit_id] += 1
    starts = {one.episode_id for one in events if type(one).__name__ == "EpisodeStarted"}
    for drop in flow.records(DROPS):
        if drop.unit == "episode" and drop.unit_id not in starts and drop.detail != "no EpisodeStarted":
            found[drop.reason, drop.unit_id] += 1
    assert found == expected.dropped


async def test_episodes_become_batches_and_each_trajectory_has_one_fate() -> None:
    flow = make_flow()
    events = attempts(5)
    await pour(flow, events)
    assert_as_expected(flow, events)
    batches = await train(flow)
    assert [len(batch.groups) for batch in batches] == [2, 2]
    waiting = set(expect(events).trajectories) - fates(flow).keys()
    assert set(fates(flow).values()) == {1}
    assert len(waiting) == 3


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    partitions=st.integers(1, 3),
    repeats=st.integers(0, 10),
    lost=st.sets(st.integers(0, 44), max_size=6),
    at_most=st.sampled_from([1, 2, 7, None]),
)
def test_any_order_repetition_loss_and_batch_bounds_give_what_the_log_says(
    seed: int, partitions: int, repeats: int, lost: set[int], at_most: int | None
) -> None:
    chance = random.Random(seed)
    events = [event for index, event in enumerate(attempts(3)) if index not in lost]
    sent = events + [chance.choice(events) for _ in range(repeats)]
    chance.shuffle(sent)
    flow = make_flow(partitions=partitions)
    asyncio.run(pour(flow, sent, at_most=at_most))
    assert_as_expected(flow, events)
    names = expect(events).trajectories
    asyncio.run(train(flow))
    assert set(fates(flow).values()) <= {1}
    waiting = {
        member.trajectory_id
        for reader in flow.readers
        if reader.stage.name == "curriculum.main"
        for row in reader.state.waiting.rows.values()
        for member in row.group().members
    }
    assert fates(flow).keys() | waiting == names
    assert not fates(flow).keys() & waiting


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_restart_of_any_stage_at_any_time_changes_nothing(seed: int) -> None:
    chance = random.Random(seed)
    events = attempts(3)[3:]
    chance.shuffle(events)

    async def run(restarts: bool) -> list[Any]:
        flow = make_flow()
        dice = random.Random(seed)
        for event in events:
            flow.publish(EPISODE_EVENTS, event.root_episode_id, event)
            await flow.settle()
            if restarts and dice.random() < 0.2:
                dice.choice(flow.readers).restore(lambda keys: dice.sample(keys, len(keys)))
        await pour(flow, [])
        await train(flow)
        return [flow.records(topic) for topic in (TRAJECTORIES, SCORES, RUN_LOG, CURRICULUM, BATCHES, DROPS)]

    assert asyncio.run(run(restarts=True)) == asyncio.run(run(restarts=False))


async def test_the_same_log_gives_the_same_bytes() -> None:
    outputs = []
    for at_most in (1, None):
        flow = make_flow(partitions=1)
        await pour(flow, attempts(4), at_most=at_most)
        await train(flow)
        outputs.append([[incoming.data for incoming in flow.log.of(topic)[0]] for topic in (TRAJECTORIES, BATCHES)])
    assert outputs[0] == outputs[1]


async def test_two_runs_on_one_log_decide_each_for_themselves() -> None:
    other = RunConfig(
        run_id="other",
        grouping=GroupingConfig(group_size=3, advantage="mean"),
        curriculum=CurriculumConfig(mode="harness", groups_per_window=4),
        batching=BatchingConfig(groups_per_step=1),
    )
    flow = make_flow(RUN, other)
    await pour(flow, attempts(4))
    batches = flow.records(BATCHES)
    assert {batch.run_id for batch in batches} == {"main", "other"}
    assert [state.run_id for state in flow.records(CURRICULUM)] == ["other"]
    assert set(fates(flow, "main").values()) == set(fates(flow, "other").values()) == {1}


async def test_children_without_a_reward_of_their_own_reach_a_batch() -> None:
    grouping = GroupingConfig(group_size=2, feedback_tasks=("play",), reward_grace_ms=180_000)
    helpers = FilterConfig(agents=("helper",))
    run = RunConfig(filter=helpers, grouping=grouping, batching=BatchingConfig(groups_per_step=1))
    flow = make_flow(run, assembly=ASSEMBLY.model_copy(update={"pass_down": {"reward": "inherit"}}))
    await flow.tick(make_tick(0))
    events: list[Any] = []
    for root, value in (("r1", 1.0), ("r2", 0.25)):
        start = {"parent_episode_id": root, "agent": "helper"}
        child = make_episode(f"{root}-child", root=root, reward=None, start=start)
        feedback = make_reward(root, value, key=root, writer="user")
        events += [*child, *make_episode(root, reward=None), feedback]
    await pour(flow, events)
    ((group,),) = [batch.groups for batch in flow.records(BATCHES)]
    assert {member.episode_id: member.reward for member in group.members} == {"r1-child": 1.0, "r2-child": 0.25}


async def test_a_reward_by_alias_reaches_the_group() -> None:
    flow = make_flow(RunConfig(grouping=GroupingConfig(group_size=2)))
    await flow.tick(make_tick(0))
    flow.publish(ALIASES, "order", make_alias_reward("order", 0.25))
    flow.publish(ALIASES, "order", make_alias("order", "e0"))
    await flow.settle()
    for episode, reward in (("e0", None), ("e1", 1.0)):
        for event in make_episode(episode, reward=reward):
            flow.publish(EPISODE_EVENTS, episode, event)
    await flow.settle()
    (group,) = [record for record in flow.records(RUN_LOG) if isinstance(record, Group)]
    assert sorted(member.reward for member in group.members) == [0.25, 1.0]


async def test_feedback_within_the_grace_counts_and_after_the_close_is_counted() -> None:
    grouping = GroupingConfig(group_size=2, reward_grace_ms=120_000, feedback_tasks=("play",))
    flow = make_flow(RunConfig(grouping=grouping))
    await flow.tick(make_tick(0))
    for episode in ("e0", "e1"):
        for event in make_episode(episode, reward=None):
            flow.publish(EPISODE_EVENTS, episode, event)
        flow.publish(EPISODE_EVENTS, episode, make_reward(episode, 1.0 if episode == "e0" else 0.0))
    await flow.tick(make_tick(1, stream_time_ms=START_MS + 120_000))
    (group,) = [record for record in flow.records(RUN_LOG) if isinstance(record, Group)]
    assert sorted(member.reward for member in group.members) == [0.0, 1.0]
    flow.publish(EPISODE_EVENTS, "e0", make_reward("e0", 5.0, key="later"))
    await flow.settle()
    (drop,) = [record for record in flow.records(DROPS) if isinstance(record, Drop)]
    assert (drop.reason, drop.unit) == ("group_closed", "event")


async def test_state_is_small_again_once_everything_is_decided_and_forgotten() -> None:
    flow = make_flow()
    await pour(flow, attempts(4))
    await train(flow)
    for day in range(1, 5):
        await flow.tick(make_tick(100 + day, stream_time_ms=START_MS + day * 86_400_000))
    rows = {(reader.stage.name, key.split(b"\x1f")[0].decode()) for reader in flow.readers for key in reader.changelog}
    assert {table for _, table in rows} == {"clock", "head", "parent", "window"}


async def test_an_event_is_written_to_the_changelog_once() -> None:
    flow = make_flow(partitions=1)
    tokens = tuple(range(700))
    events = make_episode(turns=1)
    events[1] = type(events[1])(
        **{name: getattr(events[1], name) for name in events[1].__dataclass_fields__}
        | {"prompt_token_ids": bytes(4 * len(tokens))}
    )
    await pour(flow, events)
    reader = next(reader for reader in flow.readers if reader.stage.name == "assembly")
    ingested = sum(len(incoming.data) for incoming in flow.log.of(EPISODE_EVENTS)[0])
    emitted = sum(len(incoming.data) for incoming in flow.log.of(TRAJECTORIES)[0])
    assert reader.changelog_bytes + emitted < 3 * ingested
