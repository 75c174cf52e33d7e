"""Several calls of one tool at once are told apart by the model's ids, in every framework."""

import json
from collections.abc import Awaitable, Callable, Iterator

import pytest
from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool

from rollbus import instrument
from rollbus.producers import MemorySink, Recorder
from rollbus.schemas.records.events import ToolCalled
from tests.producers.integrations import test_adk, test_llama_index
from tests.producers.integrations.agent_server import AgentServer, stock
from tests.producers.integrations.test_instrument import end_litellms_callbacks
from tests.producers.integrations.test_langchain import model_of
from tests.producers.recorded_events import recorded_events

ITEMS = ("bolts", "nuts", "bolts")


@pytest.fixture(autouse=True)
def _instrument_clients(recorder: Recorder) -> Iterator[None]:
    set_tracing_disabled(False)
    patches = instrument(recorder)
    yield
    patches.undo()
    set_tracing_disabled(True)


async def play_langchain(server: AgentServer) -> None:
    """An agent of LangChain, whose tools run in threads."""
    create_agent(model_of(server), [tool(stock)]).invoke({"messages": [HumanMessage("How many?")]})


async def play_llama_index(server: AgentServer) -> None:
    """An agent of LlamaIndex, whose tools run in tasks; of a chunk with several calls it takes one."""
    await test_llama_index.load_agent(test_llama_index.llm_of(server), streaming=False).run("How many?")


async def play_adk(server: AgentServer) -> None:
    """An agent of Google's ADK."""
    await test_adk.ask(test_adk.load_agent(server.async_client()))
    await end_litellms_callbacks()


async def play_openai_agents(server: AgentServer) -> None:
    """An agent of OpenAI Agents, whose traces do not name the call."""
    model = OpenAIChatCompletionsModel("agent", server.async_client())
    await Runner.run(Agent(name="keeper", tools=[function_tool(stock)], model=model), "How many?")


@pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20", "ignore::pydantic.PydanticDeprecatedSince211")
@pytest.mark.filterwarnings("ignore:Pydantic serializer:UserWarning")
@pytest.mark.parametrize("play", [play_langchain, play_llama_index, play_adk, play_openai_agents])
async def test_three_calls_of_one_tool_carry_the_models_ids(
    recorder: Recorder, sink: MemorySink, play: Callable[[AgentServer], Awaitable[None]]
) -> None:
    server = AgentServer(*({"item": item} for item in ITEMS), tool="stock")
    async with recorder.episode(task="stock"):
        await play(server)
    tools = [event for event in recorded_events(recorder, sink) if isinstance(event, ToolCalled)]
    calls = sorted((tool.tool_call_id, json.loads(tool.arguments)["item"], tool.error) for tool in tools)
    assert calls == [("call-1", "bolts", None), ("call-2", "nuts", None), ("call-3", "bolts", None)]
    assert all((tool.result or "").count(f"{json.loads(tool.arguments)['item']}: 7") == 1 for tool in tools)
