"""From events to batches, all stages together; that nothing is lost, or twice, `tests/streams/simulation` shows."""

from typing import Any

from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.ids import trajectory_id
from rollbus.schemas.records.config import (
    AssemblyConfig,
    BatchingConfig,
    FilterConfig,
    GroupingConfig,
    RunConfig,
    ScoringConfig,
)
from rollbus.schemas.topics import BATCHES, EPISODE_EVENTS, TRAINING_STEPS, TRAJECTORIES
from rollbus.streams.pipeline import namespace_stages, run_stages
from rollbus.streams.state.stage import PureAsEffects
from rollbus.ui.page_reports import PageReports
from rollbus.ui.sessions import PageJudge
from tests.builders import START_MS, make_episode, make_reward, make_tick, make_turn
from tests.flow.in_memory import Flow
from tests.streams.simulation.trainer import SimulatedTrainer

ASSEMBLY = AssemblyConfig(inactivity_ms=60_000)
RUN = RunConfig(grouping=GroupingConfig(group_size=3), batching=BatchingConfig(groups_per_step=2))


def make_flow(run: RunConfig = RUN, *, partitions: int = 2, assembly: AssemblyConfig = ASSEMBLY) -> Flow:
    trainer = PureAsEffects(SimulatedTrainer())
    return Flow([*namespace_stages(assembly, ScoringConfig()), *run_stages(run), trainer], partitions=partitions)


async def pour(flow: Flow, events: list[Any]) -> None:
    """Publish events, and let all time pass that anything could wait for."""
    for event in events:
        flow.publish(EPISODE_EVENTS, event.root_episode_id, event)
    await flow.settle()
    for minute in range(1, 16):
        await flow.tick(make_tick(minute, stream_time_ms=START_MS + minute * 60_000))


async def test_children_without_a_reward_of_their_own_reach_a_batch() -> None:
    grouping = GroupingConfig(group_size=2)
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


async def test_a_verdict_given_on_the_page_is_the_reward_that_a_step_trains() -> None:
    flow = make_flow(RunConfig(grouping=GroupingConfig(group_size=2), batching=BatchingConfig(groups_per_step=1)))
    await flow.tick(make_tick(0))
    page, ann = PageReports(KafkaConnection(), "rollbus.", lambda: START_MS), PageJudge("ann", is_owner=True)
    events: list[Any] = []
    for episode, value in (("e1", 1.0), ("e2", 0.0)):
        form = {"episode_id": episode, "value": value, "name": "reward", "comment": "as it should be"}
        events += [*make_episode(episode, reward=None), page.make_report(ann, form)]
    await pour(flow, events)
    ((group,),) = [batch.groups for batch in flow.records(BATCHES)]
    assert {member.episode_id: member.reward for member in group.members} == {"e1": 1.0, "e2": 0.0}
    (step,) = flow.records(TRAINING_STEPS)
    advantages = {member.trajectory_id: member.advantage for member in step.trained}
    assert advantages[trajectory_id("e1")] > 0 > advantages[trajectory_id("e2")]
    taken = [reward for record in flow.records(TRAJECTORIES) for reward in getattr(record, "rewards", ())]
    assert {(reward.source, reward.name) for reward in taken} == {("operator", "reward")}


async def test_state_is_small_again_once_everything_is_decided_and_forgotten() -> None:
    flow = make_flow()
    events = [
        event
        for number in range(12)
        for event in make_episode(
            f"e{number}",
            reward=float(number % 3),
            start={"group_id": f"g{number // 3}", "group_size": 3, "example_id": None},
        )
    ]
    await pour(flow, events)
    assert len(flow.records(BATCHES)) == 2
    for day in range(1, 5):
        await flow.tick(make_tick(100 + day, stream_time_ms=START_MS + day * 86_400_000))
    streams = [reader for reader in flow.readers if reader.stage.name != "trainer"]
    tables = {key.split(b"\x1f")[0].decode() for reader in streams for key in reader.changelog}
    bounded = {"habit", "level"}  # of the tasks and examples used last
    assert tables == {"clock", "head", "parent", "window"} | bounded


async def test_an_event_is_written_to_the_changelog_once() -> None:
    flow = make_flow(partitions=1)
    events = make_episode(turns=1)
    events[1] = make_turn(prompt=[0] * 700)
    await pour(flow, events)
    reader = next(reader for reader in flow.readers if reader.stage.name == "assembly")
    ingested = sum(len(incoming.data) for incoming in flow.log.of(EPISODE_EVENTS)[0])
    emitted = sum(len(incoming.data) for incoming in flow.log.of(TRAJECTORIES)[0])
    assert reader.changelog_bytes + emitted < 3 * ingested
