"""An agent of LangGraph that asks a person: what is resumed, also elsewhere, is a part of the episode that paused."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from rollbus.producers import MemorySink, Recorder, init
from rollbus.producers.integrations.langchain import RollbusHandler
from rollbus.schemas.ids import pause_name
from rollbus.schemas.records.config import AssemblyConfig
from rollbus.schemas.records.events import EpisodeEnded, EpisodeStarted, ToolCalled, TurnRecorded, WriterClosed
from rollbus.schemas.records.trajectories import Trajectory
from rollbus.streams.stages.alias import AliasStage
from rollbus.streams.stages.assembly.stage import AssemblyStage
from tests.producers.integrations.agent_server import AgentServer
from tests.producers.integrations.test_langchain import ASK, model_of
from tests.producers.recorded_events import recorded_events
from tests.stepper import Stepper


@tool("stock")
def ask_person(item: str) -> str:
    """Ask a person."""
    return f"{item}: {interrupt(item)}"


@pytest.fixture
def elsewhere() -> Iterator[tuple[Recorder, MemorySink]]:
    """The recorder of another process."""
    sink = MemorySink()
    recorder = init(sink=sink)
    yield recorder, sink
    recorder.close()


def agent_of(server: AgentServer) -> Any:
    return create_agent(model_of(server), [ask_person], checkpointer=InMemorySaver())


def options_of(recorder: Recorder, **options: Any) -> Any:
    return {"configurable": {"thread_id": "t/1"}, "callbacks": [RollbusHandler(recorder, **options)]}


def trajectories_of(*sinks: MemorySink) -> list[Trajectory]:
    """What the log makes of what these processes sent, one after the other."""
    alias, assembly = Stepper(AliasStage(AssemblyConfig())), Stepper(AssemblyStage(AssemblyConfig()))
    outputs: list[Any] = []
    for stepper in (alias, assembly):
        stepper.tick()
    for sink in sinks:
        outputs += assembly.feed(*sink.records("episode-events"))
        outputs += assembly.feed(*alias.feed(*sink.records("aliases")))
    return [record for record in outputs if isinstance(record, Trajectory)]


def of_kind(events: Iterable[Any], kind: type) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def assert_whole(trajectory: Trajectory, server: AgentServer) -> None:
    (call,) = trajectory.tools
    assert (call.tool_call_id, call.result, call.error) == ("call-1", "bolts: 7", None)
    assert [turn.response_id for turn in trajectory.turns] == ["chatcmpl-1", "chatcmpl-2"]
    assert trajectory.turns[-1].completion.content == server.final
    assert (trajectory.closed_by, trajectory.stop_reason, trajectory.partial) == ("ended", "completed", ())


def test_an_episode_resumed_in_the_same_process_is_one_trajectory(
    recorder: Recorder, sink: MemorySink, server: AgentServer
) -> None:
    agent, options = agent_of(server), options_of(recorder, task="ask")
    agent.invoke(ASK, options)
    first = recorded_events(recorder, sink)
    assert of_kind(first, WriterClosed)[-1].paused
    assert not of_kind(first, EpisodeEnded)
    agent.invoke(Command(resume="7"), options)
    events = recorded_events(recorder, sink)
    assert {event.episode_id for event in events} == {first[0].episode_id}
    assert len(of_kind(events, EpisodeStarted)) == len(of_kind(events, EpisodeEnded)) == 1
    (trajectory,) = trajectories_of(sink)
    assert_whole(trajectory, server)


def test_an_episode_resumed_in_another_process_is_one_trajectory(
    recorder: Recorder, sink: MemorySink, elsewhere: tuple[Recorder, MemorySink], server: AgentServer
) -> None:
    agent, (other, other_sink) = agent_of(server), elsewhere
    agent.invoke(ASK, options_of(recorder, task="ask"))
    agent.invoke(Command(resume="7"), options_of(other, task="ask"))
    assert recorder.flush(60)
    assert other.flush(60)
    assert not list(other_sink.records("episode-events"))
    resumed = list(other_sink.records("aliases"))
    assert {event.episode_id for event in resumed} == {pause_name("t/1")}
    assert len(of_kind(resumed, TurnRecorded)) == len(of_kind(resumed, ToolCalled)) == 1
    (trajectory,) = trajectories_of(sink, other_sink)
    assert_whole(trajectory, server)


def test_a_program_says_itself_which_of_its_blocks_pause_and_resume(
    recorder: Recorder, sink: MemorySink, elsewhere: tuple[Recorder, MemorySink], server: AgentServer
) -> None:
    agent, (other, other_sink) = agent_of(server), elsewhere
    with recorder.episode(task="ask"):
        agent.invoke(ASK, options_of(recorder))
        recorder.pause("order 7")
    with other.resume("order 7") as episode:
        agent.invoke(Command(resume="7"), options_of(other))
        episode.reward(1.0)
        other.feedback(reward=0.5, name="thumbs", key="k")
    assert recorder.flush(60)
    assert other.flush(60)
    (trajectory,) = trajectories_of(sink, other_sink)
    assert_whole(trajectory, server)
    assert {(reward.name, reward.value) for reward in trajectory.rewards} == {("reward", 1.0), ("thumbs", 0.5)}


def test_a_run_with_new_input_on_a_paused_thread_is_an_episode_of_its_own(
    recorder: Recorder, sink: MemorySink, server: AgentServer
) -> None:
    agent, options = agent_of(server), options_of(recorder, task="ask")
    agent.invoke(ASK, options)
    agent.invoke(ASK, {**options, "configurable": {"thread_id": "t/2"}})
    events = recorded_events(recorder, sink)
    assert len({event.episode_id for event in of_kind(events, EpisodeStarted)}) == 2
    assert trajectories_of(sink) == []
