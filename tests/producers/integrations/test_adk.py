"""Google ADK agents on wrapped clients: turns with the server's tokens, and the agent's structure."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from google.adk.agents import BaseAgent, LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode  # type: ignore[attr-defined]
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.lite_llm import LiteLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types

from rollbus.producers import MemorySink, Recorder
from rollbus.producers.integrations.adk import RollbusPlugin
from rollbus.schemas.records.events import EpisodeEnded, EpisodeStarted, ToolCalled, TurnRecorded
from tests.producers.integrations.agent_server import AgentServer, assert_agent, assert_sampled, stock
from tests.producers.recorded_events import recorded_events

pytestmark = pytest.mark.filterwarnings(  # LiteLLM reads deprecated attributes of its own stream chunks
    "ignore::pydantic.PydanticDeprecatedSince211"
)


def load_agent(client: Any, **options: Any) -> LlmAgent:
    """An agent with one tool, on LiteLLM over this client."""
    model = LiteLlm(model="openai/agent", client=client, api_key="k", api_base="http://server/v1")
    return LlmAgent(**{"name": "keeper", "model": model, "tools": [stock], "instruction": "Count.", **options})


async def ask(
    agent: BaseAgent,
    *plugins: RollbusPlugin,
    question: str = "How many bolts?",
    mode: StreamingMode = StreamingMode.NONE,
) -> list[str]:
    """Run the agent on a question and return the texts it said."""
    runner = InMemoryRunner(app=App(name="shop", root_agent=agent, plugins=[*plugins]))
    session = await runner.session_service.create_session(app_name="shop", user_id="u")
    message = types.Content(role="user", parts=[types.Part(text=question)])
    texts = []
    async for event in runner.run_async(
        user_id="u", session_id=session.id, new_message=message, run_config=RunConfig(streaming_mode=mode)
    ):
        texts += [part.text for part in (event.content.parts if event.content else None) or () if part.text]
    await runner.close()
    return texts


@pytest.mark.parametrize("mode", [StreamingMode.NONE, StreamingMode.SSE])
async def test_an_agents_turns_are_trainable_with_the_servers_ids(
    recorder: Recorder, sink: MemorySink, server: AgentServer, mode: StreamingMode
) -> None:
    async with recorder.episode(task="stock"):
        texts = await ask(load_agent(recorder.wrap(server.async_client())), RollbusPlugin(recorder), mode=mode)
    assert texts[-1] == server.final
    assert_agent(server, recorded_events(recorder, sink), streamed=mode is StreamingMode.SSE)


async def test_a_run_is_an_episode_where_a_task_is_named(
    recorder: Recorder, sink: MemorySink, server: AgentServer
) -> None:
    await ask(load_agent(recorder.wrap(server.async_client())), RollbusPlugin(recorder, task="stock"))
    events = recorded_events(recorder, sink)
    assert [event.task for event in events if isinstance(event, EpisodeStarted)] == ["stock"]
    assert [event.stop_reason for event in events if isinstance(event, EpisodeEnded)] == ["completed"]
    assert_sampled(server, [event for event in events if isinstance(event, TurnRecorded)])


class Transferring(BaseLlm):
    """Asks for a transfer to the other agent a number of times, then answers."""

    to: str
    left: Any

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse]:
        """Answer."""
        self.left[0] -= 1
        call = types.FunctionCall(id=f"call-{self.left[0]}", name="transfer_to_agent", args={"agent_name": self.to})
        part = types.Part(function_call=call) if self.left[0] >= 0 else types.Part(text="7")
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


@pytest.mark.parametrize("leave_early", [False, True])
async def test_agents_that_transfer_to_each_other_are_closed_each_time(
    recorder: Recorder, sink: MemorySink, leave_early: bool
) -> None:
    left = [3]
    keeper = LlmAgent(name="keeper", model=Transferring(model="m", to="front", left=left))
    front = LlmAgent(name="front", model=Transferring(model="m", to="keeper", left=left), sub_agents=[keeper])
    plugin = RollbusPlugin(recorder, child_agents=["front", "keeper"])
    runner = InMemoryRunner(app=App(name="shop", root_agent=front, plugins=[plugin]))
    session = await runner.session_service.create_session(app_name="shop", user_id="u")
    message = types.Content(role="user", parts=[types.Part(text="How many bolts?")])
    async with recorder.episode(task="stock"):
        events = runner.run_async(user_id="u", session_id=session.id, new_message=message)
        async for _ in events:
            if leave_early and left[0] == 0:
                break
        await events.aclose()
        await runner.close()
    seen = recorded_events(recorder, sink)
    children = [event for event in seen if isinstance(event, EpisodeStarted) and event.parent_episode_id]
    assert [child.agent for child in children] == ["front", "keeper", "front", "keeper"][: 3 if leave_early else 4]
    ended = [event.episode_id for event in seen if isinstance(event, EpisodeEnded)]
    assert sorted(ended) == sorted({event.episode_id for event in seen})


async def test_a_failing_tool_is_recorded(recorder: Recorder, sink: MemorySink) -> None:
    server = AgentServer(tool="stock", arguments={"item": "fault"})
    agent = load_agent(recorder.wrap(server.async_client()))
    with pytest.raises(ValueError, match="no such shelf"):
        await ask(agent, RollbusPlugin(recorder, task="stock"))
    events = recorded_events(recorder, sink)
    assert [event.error for event in events if isinstance(event, ToolCalled)] == ["ValueError: no such shelf"]
    assert [event.stop_reason for event in events if isinstance(event, EpisodeEnded)] == ["error"]


async def test_a_client_that_is_not_wrapped_gives_turns_that_say_so(
    recorder: Recorder, sink: MemorySink, server: AgentServer
) -> None:
    async with recorder.episode(task="stock"):
        await ask(load_agent(server.async_client()), RollbusPlugin(recorder))
    turns = [event for event in recorded_events(recorder, sink) if isinstance(event, TurnRecorded)]
    assert [turn.untrainable_reason for turn in turns] == ["not_captured", "not_captured"]
    assert turns[1].completion.content == server.final
    assert [message.role for message in turns[1].added_messages] == ["tool"]
