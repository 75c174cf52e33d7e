"""Two agents of one process, each with a recorder of its own: each records its own, and neither ends the other."""

from collections.abc import Awaitable, Callable, Iterator

import litellm
import pytest
from agents import Agent, Runner, function_tool
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool

from rollbus import instrument
from rollbus.producers import MemorySink, Recorder, init
from rollbus.producers.integrations.langchain import RollbusHandler
from rollbus.schemas.records.events import ToolCalled
from tests.producers.integrations import test_adk, test_llama_index
from tests.producers.integrations.agent_server import AgentServer, stock, turns_of
from tests.producers.integrations.test_instrument import agents_model, end_litellms_callbacks
from tests.producers.integrations.test_langchain import model_of
from tests.producers.recorded_events import recorded_events

RunsAgent = Callable[[AgentServer], Awaitable[object]]


@pytest.fixture
def other_sink() -> MemorySink:
    return MemorySink()


@pytest.fixture
def other(other_sink: MemorySink) -> Iterator[Recorder]:
    recorder = init(sink=other_sink, namespace="t.", producer="other-agent", environment="test")
    yield recorder
    recorder.close(120)


async def run_langchain(server: AgentServer) -> object:
    return create_agent(model_of(server), [tool(stock)], name="keeper").invoke(
        {"messages": [HumanMessage("How many?")]}
    )


async def run_llama_index(server: AgentServer) -> object:
    return await test_llama_index.load_agent(test_llama_index.llm_of(server)).run("How many bolts?")


async def run_adk(server: AgentServer) -> object:
    await test_adk.ask(test_adk.load_agent(server.async_client()))
    await end_litellms_callbacks()
    return None


async def run_openai_agents(server: AgentServer) -> object:
    agent = Agent(name="keeper", tools=[function_tool(stock)], model=agents_model(server))
    return await Runner.run(agent, "How many bolts?")


def tools_of(recorder: Recorder, sink: MemorySink) -> list[str]:
    return [event.name for event in recorded_events(recorder, sink) if isinstance(event, ToolCalled)]


@pytest.mark.usefixtures("traced_agents")
@pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20", "ignore::pydantic.PydanticDeprecatedSince211")
@pytest.mark.filterwarnings("ignore:Pydantic serializer:UserWarning")
@pytest.mark.parametrize(
    "run", [run_langchain, run_llama_index, run_adk, run_openai_agents], ids=lambda run: run.__name__
)
async def test_each_of_two_recorders_has_the_turns_and_tools_of_its_own_episodes(
    recorder: Recorder, sink: MemorySink, other: Recorder, other_sink: MemorySink, server: AgentServer, run: RunsAgent
) -> None:
    patches = [instrument(recorder), instrument(other)]
    try:
        for owner in (recorder, other):
            async with owner.episode(task="stock"):
                await run(server)
        patches[0].undo()
        async with other.episode(task="stock"):
            await run(server)
    finally:
        for patch in patches:
            patch.undo()
    turn_counts = [len(turns_of(recorded_events(*pair))) for pair in ((recorder, sink), (other, other_sink))]
    assert turn_counts == [2, 4]
    assert (tools_of(recorder, sink), tools_of(other, other_sink)) == (["stock"], ["stock"] * 2)


@pytest.mark.filterwarnings("ignore:Pydantic serializer:UserWarning")
async def test_each_of_two_recorders_hears_of_its_calls_by_litellm(
    recorder: Recorder, sink: MemorySink, other: Recorder, other_sink: MemorySink
) -> None:
    patches = [instrument(recorder), instrument(other)]
    messages = [{"role": "user", "content": "How many?"}]
    try:
        for owner in (recorder, other):
            async with owner.episode(task="stock"):
                await litellm.acompletion(model="gpt-4o", messages=messages, mock_response="7")
                await end_litellms_callbacks()
    finally:
        for patch in patches:
            patch.undo()
    assert [len(turns_of(recorded_events(*pair))) for pair in ((recorder, sink), (other, other_sink))] == [1, 1]


def test_a_handler_by_hand_is_not_doubled_by_another_recorder(
    recorder: Recorder, sink: MemorySink, other: Recorder, other_sink: MemorySink, server: AgentServer
) -> None:
    patches = [instrument(recorder), instrument(other)]
    agent = create_agent(model_of(server), [tool(stock)], name="keeper")
    try:
        with other.episode(task="stock"):
            agent.invoke({"messages": [HumanMessage("How many?")]}, config={"callbacks": [RollbusHandler(other)]})
    finally:
        for patch in patches:
            patch.undo()
    assert (tools_of(recorder, sink), tools_of(other, other_sink)) == ([], ["stock"])
