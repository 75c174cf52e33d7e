"""LlamaIndex agents on wrapped clients: turns with the server's tokens, and the agent's structure."""

from collections.abc import Iterator
from contextvars import copy_context
from typing import Any

import httpx
import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.llms.mock import MockLLM
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai import OpenAI
from openai import BadRequestError

from rollbus.producers import MemorySink, Recorder
from rollbus.producers.episode import context
from rollbus.producers.integrations.llama_index import install, record_llm
from rollbus.schemas.records.events import ToolCalled, TurnRecorded
from tests.producers.integrations.agent_server import AgentServer, assert_agent, stock
from tests.producers.recorded_events import recorded_events

pytestmark = pytest.mark.filterwarnings(  # LlamaIndex looks at every attribute of its own agents, deprecated ones too
    "ignore::pydantic.PydanticDeprecatedSince20", "ignore::pydantic.PydanticDeprecatedSince211"
)


@pytest.fixture(autouse=True)
def _hook(recorder: Recorder) -> Iterator[None]:
    uninstall = install(recorder)
    yield
    uninstall()


def llm_of(server: AgentServer) -> OpenAI:
    """An LLM of the scripted server, under a name whose context window the package knows."""
    http: dict[str, Any] = {"http_client": server.http(), "async_http_client": server.async_http()}
    return OpenAI(model="gpt-4o-mini", api_key="k", api_base="http://server/v1", max_retries=0, **http)


def load_agent(llm: OpenAI, *, name: str = "keeper", streaming: bool = True) -> FunctionAgent:
    """An agent with one tool."""
    tool = FunctionTool.from_defaults(stock)
    return FunctionAgent(name=name, description="counts", tools=[tool], llm=llm, streaming=streaming)


@pytest.mark.parametrize("streaming", [True, False])
async def test_an_agents_turns_are_trainable_with_the_servers_ids(
    recorder: Recorder, sink: MemorySink, server: AgentServer, streaming: bool
) -> None:
    agent = load_agent(record_llm(llm_of(server), recorder), streaming=streaming)
    async with recorder.episode(task="stock"):
        answer = await agent.run("How many bolts?")
    assert str(answer) == server.final
    assert_agent(server, recorded_events(recorder, sink), streamed=streaming)


async def test_a_failing_tool_is_recorded(recorder: Recorder, sink: MemorySink) -> None:
    server = AgentServer(tool="stock", arguments={"item": "fault"})
    async with recorder.episode(task="stock"):
        await load_agent(record_llm(llm_of(server), recorder)).run("How many?")
    (call,) = (event for event in recorded_events(recorder, sink) if isinstance(event, ToolCalled))
    assert "no such shelf" in (call.error or "")


def test_a_model_that_is_not_wrapped_gives_turns_that_say_so(
    recorder: Recorder, sink: MemorySink, server: AgentServer
) -> None:
    with recorder.episode(task="stock"):
        llm_of(server).chat([ChatMessage(content="How many bolts?")])
    (turn,) = (event for event in recorded_events(recorder, sink) if isinstance(event, TurnRecorded))
    assert turn.untrainable_reason == "not_captured"
    assert (turn.model, turn.response_id) == ("agent@3", "chatcmpl-1")
    assert [message.content for message in turn.added_messages] == ["How many bolts?"]


def test_a_model_that_fails_leaves_no_call_behind(recorder: Recorder) -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        return httpx.Response(400, json={"error": {"message": "no"}})

    http: Any = {"http_client": httpx.Client(transport=httpx.MockTransport(refuse))}
    failing = OpenAI(model="gpt-4o-mini", api_key="k", api_base="http://server/v1", max_retries=0, **http)
    with recorder.episode(task="stock"):
        for llm in (failing, record_llm(failing, recorder)):
            with pytest.raises(BadRequestError):
                llm.chat([ChatMessage(content="How many bolts?")])
    assert copy_context().run(context.watch_call, lambda: None).above is None


def test_a_model_without_an_openai_client_is_refused(recorder: Recorder) -> None:
    with pytest.raises(TypeError, match="has no OpenAI client"):
        record_llm(MockLLM(), recorder)
