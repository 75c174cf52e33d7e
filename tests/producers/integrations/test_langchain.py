"""LangChain and LangGraph agents on wrapped clients: turns with the server's tokens, and the agent's structure."""

from typing import Annotated, Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain_core.language_models.fake import FakeStreamingListLLM
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, interrupt
from pydantic import SecretStr

from rollbus.producers import MemorySink, Recorder
from rollbus.producers.integrations.langchain import RollbusHandler, record_model
from rollbus.schemas.records.events import EpisodeEnded, EpisodeStarted, ToolCalled, TurnRecorded
from tests.producers.integrations.agent_server import AgentServer, assert_agent, assert_sampled, stock
from tests.producers.recorded_events import recorded_events


class State(TypedDict):
    """Of the graph."""

    messages: Annotated[list[AnyMessage], add_messages]


count_stock = tool(stock)


def model_of(server: AgentServer, **options: Any) -> ChatOpenAI:
    """A chat model of the scripted server."""
    http: dict[str, Any] = {"http_client": server.http(), "http_async_client": server.async_http()}
    key = SecretStr("k")
    return ChatOpenAI(model="agent", api_key=key, base_url="http://server/v1", max_retries=0, **http, **options)


def graph_of(model: Any) -> Any:
    """An agent: model, tool, model."""
    bound = model.bind_tools([count_stock])
    graph = StateGraph(State)

    def plan(state: State) -> dict[str, Any]:
        return {"messages": [bound.invoke(state["messages"])]}

    async def plan_async(state: State) -> dict[str, Any]:
        return {"messages": [await bound.ainvoke(state["messages"])]}

    graph.add_node("planner", RunnableLambda(plan, afunc=plan_async))
    graph.add_node("tools", ToolNode([count_stock]))
    graph.add_edge(START, "planner")
    graph.add_conditional_edges("planner", tools_condition, {"tools": "tools", END: END})
    graph.add_edge("tools", "planner")
    return graph.compile()


ASK: Any = {"messages": [HumanMessage("How many bolts?")]}


@pytest.mark.parametrize(("asynchronous", "streamed"), [(False, False), (False, True), (True, False)])
async def test_a_graphs_turns_are_trainable_with_the_servers_ids(
    recorder: Recorder, sink: MemorySink, server: AgentServer, asynchronous: bool, streamed: bool
) -> None:
    graph = graph_of(record_model(model_of(server, streaming=streamed), recorder))
    config: Any = {"callbacks": [RollbusHandler(recorder)]}
    async with recorder.episode(task="stock"):
        result = await graph.ainvoke(ASK, config=config) if asynchronous else graph.invoke(ASK, config=config)
    assert result["messages"][-1].content == server.final
    assert_agent(server, recorded_events(recorder, sink), function="planner", streamed=streamed)


def test_each_agent_is_recorded_under_its_own_name(recorder: Recorder, sink: MemorySink, server: AgentServer) -> None:
    model = record_model(model_of(server), recorder)
    with recorder.episode(task="stock"):
        for name in ("buyer", "keeper"):
            agent = create_agent(model, [count_stock], name=name)
            agent.invoke(ASK, config={"callbacks": [RollbusHandler(recorder)]})
    turns = [event for event in recorded_events(recorder, sink) if isinstance(event, TurnRecorded)]
    assert_sampled(server, turns)
    assert [turn.function for turn in turns] == ["buyer", "buyer", "keeper", "keeper"]


def test_a_graph_in_a_node_of_its_name_is_one_child_episode(
    recorder: Recorder, sink: MemorySink, server: AgentServer
) -> None:
    handler = RollbusHandler(recorder, child_agents=["helper"])
    helper = graph_of(record_model(model_of(server), recorder)).with_config(run_name="helper")
    node = RunnableLambda(lambda state: helper.invoke(state), name="helper")
    with recorder.episode(task="stock") as episode:
        RunnableLambda(lambda state: node.invoke(state), name="outer").invoke(ASK, config={"callbacks": [handler]})
    events = recorded_events(recorder, sink)
    (child,) = (event for event in events if isinstance(event, EpisodeStarted) and event.parent_episode_id)
    assert (child.parent_episode_id, child.root_episode_id, child.agent) == (episode.id, episode.id, "helper")
    assert {event.episode_id for event in events if isinstance(event, TurnRecorded)} == {child.episode_id}
    assert [event.episode_id for event in events if isinstance(event, EpisodeEnded)].count(child.episode_id) == 1


def test_a_model_that_is_not_wrapped_gives_turns_that_say_so(
    recorder: Recorder, sink: MemorySink, server: AgentServer
) -> None:
    with recorder.episode(task="stock"):
        graph_of(model_of(server)).invoke(ASK, config={"callbacks": [RollbusHandler(recorder)]})
    turns = [event for event in recorded_events(recorder, sink) if isinstance(event, TurnRecorded)]
    assert [turn.untrainable_reason for turn in turns] == ["not_captured", "not_captured"]
    assert turns[1].completion.content == server.final
    assert [turn.response_id for turn in turns] == ["chatcmpl-1", "chatcmpl-2"]


async def test_a_model_of_text_gives_turns_that_say_so_too(recorder: Recorder, sink: MemorySink) -> None:
    model = FakeStreamingListLLM(responses=["seven", "eight"])
    with recorder.episode(task="stock"), recorder.function("counter"):
        model.invoke("How many bolts?", config={"callbacks": [RollbusHandler(recorder)]})
        async for _ in model.astream("And nuts?", config={"callbacks": [RollbusHandler(recorder)]}):
            pass
    turns = [event for event in recorded_events(recorder, sink) if isinstance(event, TurnRecorded)]
    assert [turn.untrainable_reason for turn in turns] == ["not_captured", "not_captured"]
    assert [turn.added_messages[-1].content for turn in turns] == ["How many bolts?", "And nuts?"]
    assert [(turn.completion.content, turn.function) for turn in turns] == [("seven", "counter"), ("eight", "counter")]


def test_an_answer_in_blocks_keeps_its_text_and_its_reasoning(recorder: Recorder, sink: MemorySink) -> None:
    """As Claude's are where it thinks first."""
    blocks: list[Any] = [{"type": "thinking", "thinking": "count", "signature": "s"}, {"type": "text", "text": "seven"}]
    text = '[{"type": "text", "text": "seven"}]'
    model = GenericFakeChatModel(messages=iter([AIMessage(content=blocks), AIMessage(text)]))
    with recorder.episode(task="stock"):
        for _ in range(2):
            model.invoke("How many bolts?", config={"callbacks": [RollbusHandler(recorder)]})
    turns = [event for event in recorded_events(recorder, sink) if isinstance(event, TurnRecorded)]
    answers = [(turn.completion.content, turn.completion.reasoning) for turn in turns]
    assert answers == [("seven", "count"), (text, None)], "a text that looks like blocks is a text"


def test_a_failing_tool_and_a_failing_run_are_recorded(recorder: Recorder, sink: MemorySink) -> None:
    server = AgentServer(tool="stock", arguments={"item": "fault"})
    graph = graph_of(record_model(model_of(server), recorder))
    with pytest.raises(ValueError, match="no such shelf"):
        graph.invoke(ASK, config={"callbacks": [RollbusHandler(recorder, task="stock")]})
    events = recorded_events(recorder, sink)
    assert [event.task for event in events if isinstance(event, EpisodeStarted)] == ["stock"]
    assert [event.error for event in events if isinstance(event, ToolCalled)] == ["ValueError: no such shelf"]
    assert [event.stop_reason for event in events if isinstance(event, EpisodeEnded)] == ["error"]


def test_a_model_without_an_openai_client_is_refused() -> None:
    with pytest.raises(TypeError, match="has no OpenAI client"):
        record_model(AIMessage("no model"), None)  # type: ignore[arg-type]


@tool("stock")
def ask_person(item: str) -> str:
    """Ask a person."""
    return f"{item}: {interrupt(item)}"


def test_a_question_to_a_person_is_a_pause_and_not_a_tool_error(
    recorder: Recorder, sink: MemorySink, server: AgentServer
) -> None:
    agent: Any = create_agent(model_of(server), [ask_person], checkpointer=InMemorySaver())
    options: Any = {"configurable": {"thread_id": "1"}, "callbacks": [RollbusHandler(recorder)]}
    with recorder.episode(task="ask"):
        agent.invoke(ASK, options)
    assert not [event for event in recorded_events(recorder, sink) if isinstance(event, ToolCalled)]
    with recorder.episode(task="answer"):
        agent.invoke(Command(resume="7"), options)
    events = recorded_events(recorder, sink)
    (call,) = (event for event in events if isinstance(event, ToolCalled))
    assert (call.tool_call_id, call.result, call.error) == ("call-1", "bolts: 7", None)
    assert [event.stop_reason for event in events if isinstance(event, EpisodeEnded)] == ["completed", "completed"]
