"""A thread or session of a framework is a conversation: each run of it is the reply to the one before."""

from collections.abc import Iterator
from typing import Any

import pytest
from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    RunConfig,
    Runner,
    function_tool,
    set_trace_processors,
    set_tracing_disabled,
)
from agents.tracing import get_trace_provider
from google.adk.apps import App
from google.adk.runners import InMemoryRunner
from google.genai import types
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver

from rollbus.producers import MemorySink, Recorder
from rollbus.producers.integrations.adk import RollbusPlugin
from rollbus.producers.integrations.langchain import RollbusHandler, record_model
from rollbus.producers.integrations.openai_agents import RollbusProcessor
from rollbus.schemas.records.events import AliasDeclared, EpisodeStarted
from tests.producers.integrations.agent_server import AgentServer, stock
from tests.producers.integrations.test_adk import load_agent
from tests.producers.integrations.test_langchain import model_of
from tests.producers.recorded_events import recorded_events

USER_MESSAGES = ("How many bolts?", "No, nuts.")


def assert_one_conversation(recorder: Recorder, sink: MemorySink, name: str) -> None:
    """Both runs are episodes of the conversation, in order, each with what the user said to it."""
    episodes = [event for event in recorded_events(recorder, sink) if isinstance(event, EpisodeStarted)]
    declared = [record for record in sink.records("aliases") if isinstance(record, AliasDeclared)]
    assert [record.episode_id for record in declared] == [episode.episode_id for episode in episodes]
    assert [(record.alias, record.message) for record in declared] == [
        (f"conversation:{name}", user_message) for user_message in USER_MESSAGES
    ]
    assert [episode.labels["conversation"] for episode in episodes] == [name, name]


def test_a_thread_of_langgraph_is_a_conversation(recorder: Recorder, sink: MemorySink, server: AgentServer) -> None:
    keeper = create_agent(record_model(model_of(server), recorder), [], checkpointer=InMemorySaver(), name="keeper")
    options: Any = {"configurable": {"thread_id": "t7"}, "callbacks": [RollbusHandler(recorder, task="stock")]}
    for user_message in USER_MESSAGES:
        keeper.invoke({"messages": [{"role": "user", "content": user_message}]}, config=options)
    assert_one_conversation(recorder, sink, "t7")


@pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince211")
async def test_a_session_of_adk_is_a_conversation(recorder: Recorder, sink: MemorySink, server: AgentServer) -> None:
    agent = load_agent(recorder.wrap(server.async_client()))
    runner = InMemoryRunner(app=App(name="shop", root_agent=agent, plugins=[RollbusPlugin(recorder, task="stock")]))
    session = await runner.session_service.create_session(app_name="shop", user_id="u")
    for user_message in USER_MESSAGES:
        message = types.Content(role="user", parts=[types.Part(text=user_message)])
        async for _ in runner.run_async(user_id="u", session_id=session.id, new_message=message):
            pass
    await runner.close()
    assert_one_conversation(recorder, sink, session.id)


@pytest.fixture
def _trace_agents(recorder: Recorder) -> Iterator[None]:
    """The SDK's traces reach the recorder, and nobody else."""
    before = list(get_trace_provider()._multi_processor._processors)  # type: ignore[attr-defined]
    set_trace_processors([RollbusProcessor(recorder, task="stock")])
    set_tracing_disabled(False)
    yield
    set_tracing_disabled(True)
    set_trace_processors(before)


@pytest.mark.usefixtures("_trace_agents")
async def test_a_group_of_traces_of_openai_agents_is_a_conversation(
    recorder: Recorder, sink: MemorySink, server: AgentServer
) -> None:
    model = OpenAIChatCompletionsModel("agent", recorder.wrap(server.async_client()))
    for user_message in USER_MESSAGES:
        await Runner.run(
            Agent(name="keeper", model=model, tools=[function_tool(stock)]),
            user_message,
            run_config=RunConfig(group_id="chat-3"),
        )
    assert_one_conversation(recorder, sink, "chat-3")
