"""Agents after LangChain's and LangGraph's documentation: supervisor, parallel branches, a person who approves."""

import operator
from collections.abc import Iterator
from typing import Annotated, Any, TypedDict

import httpx
import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from pydantic import SecretStr

from rollbus.schemas.records.events import ToolCalled
from tests.agents.conftest import World
from tests.agents.model_server import ModelServer
from tests.agents.test_openai_client import Count

KEY = SecretStr("k")


class Parts(TypedDict):
    """What the branches of a graph share."""

    question: str
    notes: Annotated[list[str], operator.add]
    answer: str


@pytest.fixture
def model(server: ModelServer) -> Iterator[ChatOpenAI]:
    """A model that repeats nothing by itself."""
    with httpx.Client() as client:
        yield ChatOpenAI(model="agent", api_key=KEY, base_url=server.url, max_retries=0, http_client=client)


def question(text: str) -> Any:
    """A conversation's beginning."""
    return {"messages": [HumanMessage(text)]}


async def test_a_supervisor_with_two_agents_as_tools(world: World, model: ChatOpenAI) -> None:
    @tool
    def stock(item: str) -> str:
        """Count what is in stock."""
        return f"{item}: 7"

    counter = create_agent(model, [stock], system_prompt="You count.", name="counter")
    writer = create_agent(model, [], system_prompt="You write.", name="writer")

    @tool
    def ask_counter(request: str) -> str:
        """Ask who counts."""
        return str(counter.invoke(question(request))["messages"][-1].content)

    @tool
    def ask_writer(request: str) -> str:
        """Ask who writes."""
        return str(writer.invoke(question(request))["messages"][-1].content)

    supervisor = create_agent(model, [ask_counter, ask_writer], system_prompt="You lead.", name="supervisor")

    async def play(text: str) -> None:
        supervisor.invoke(question(text))

    await world.play(play)
    turns = world.compare(cancelled=world.failure_count > 0)
    assert {turn.function for turn in turns} <= {"supervisor", "counter", "writer"}
    if not world.failure_count:
        assert len(turns) == 3 * 5
        called = [event.name for event in world.sink.records("episode-events") if isinstance(event, ToolCalled)]
        assert sorted(called) == ["ask_counter"] * 3 + ["ask_writer"] * 3 + ["stock"] * 3


async def test_branches_of_a_graph_side_by_side(world: World, server: ModelServer) -> None:
    async with httpx.AsyncClient() as client:
        model = ChatOpenAI(
            model="agent", api_key=KEY, base_url=server.url, max_retries=0, http_async_client=client, streaming=True
        )

        def node(name: str) -> Any:
            async def ask(state: Parts) -> dict[str, list[str]]:
                reply = await model.ainvoke([HumanMessage(f"{name}: {state['question']}")])
                return {"notes": [str(reply.content)]}

            return ask

        async def join(state: Parts) -> dict[str, str]:
            reply = await model.ainvoke([HumanMessage(" ".join([*state["notes"], state["question"]]))])
            return {"answer": str(reply.content)}

        builder = StateGraph(Parts)
        for name in ("left", "middle", "right"):
            builder.add_node(name, node(name))
            builder.add_edge(START, name)
            builder.add_edge(name, "join")
        builder.add_node("join", join)
        builder.add_edge("join", END)
        graph = builder.compile()

        async def play(text: str) -> None:
            async for _ in graph.astream({"question": text, "notes": [], "answer": ""}):
                pass

        await world.play(play)
    turns = world.compare(cancelled=world.failure_count > 0)
    assert all(turn.streamed for turn in turns)
    assert world.failure_count or sorted(turn.function for turn in turns) == sorted(
        ["left", "middle", "right", "join"] * 3
    )


async def test_a_person_who_approves_between_two_runs(world: World, model: ChatOpenAI) -> None:
    @tool
    def order(item: str) -> str:
        """Order an item."""
        return f"{item} ordered" if interrupt({"item": item}) == "yes" else "refused"

    agent = create_agent(model, [order], checkpointer=InMemorySaver(), name="buyer")

    async def play(text: str) -> None:
        config: Any = {"configurable": {"thread_id": text}}
        assert "__interrupt__" in agent.invoke(question(text), config=config)
        agent.invoke(Command(resume="yes"), config=config)

    await world.play(play)
    turns = world.compare()
    assert world.failure_count or [turn.function for turn in turns] == ["buyer"] * 6


async def test_structured_output_and_retries_of_a_runnable(world: World, model: ChatOpenAI) -> None:
    structured = model.with_structured_output(Count, method="json_schema")
    patient = structured.with_retry(stop_after_attempt=4, wait_exponential_jitter=False)

    async def play(text: str) -> None:
        assert isinstance(patient.invoke([HumanMessage(text)]), Count)

    await world.play(play)
    assert len(world.compare()) == len(world.server.answers)
    assert world.failure_count == 0


async def test_a_batch_in_threads(world: World, model: ChatOpenAI) -> None:
    async def play(text: str) -> None:
        model.batch([[HumanMessage(f"{part}: {text}")] for part in range(4)], return_exceptions=True)
        model.batch([[HumanMessage(f"{part}: {text}")] for part in range(2)], config={"max_concurrency": 1})

    await world.play(play)
    assert world.failure_count or len(world.compare()) == 18
    world.compare()
