"""Agents after the OpenAI Agents SDK's documentation: hand-offs, agents as tools, guardrails, streams."""

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    OpenAIChatCompletionsModel,
    Runner,
    RunState,
    function_tool,
    input_guardrail,
)

from rollbus.schemas.records.events import ToolCalled
from tests.agents.conftest import World
from tests.agents.model_server import ModelServer


@pytest.fixture
async def model(server: ModelServer) -> AsyncIterator[OpenAIChatCompletionsModel]:
    """A model that repeats nothing by itself."""
    async with openai.AsyncOpenAI(api_key="k", base_url=server.url, max_retries=0) as client:
        yield OpenAIChatCompletionsModel("agent", client)


@function_tool
def stock(item: str) -> str:
    """Count what is in stock."""
    return f"{item}: 7"


async def test_a_hand_off(world: World, model: OpenAIChatCompletionsModel) -> None:
    keeper = Agent(name="keeper", instructions="You count.", model=model)
    front = Agent(name="front", instructions="You hand over.", model=model, handoffs=[keeper])

    async def play(question: str) -> None:
        assert (await Runner.run(front, question)).last_agent.name == "keeper"

    await world.play(play)
    turns = world.compare()
    assert world.failure_count or [turn.function for turn in turns] == ["front", "keeper"] * 3


async def test_agents_as_tools_streamed(world: World, model: OpenAIChatCompletionsModel) -> None:
    keeper = Agent(name="keeper", instructions="You count.", tools=[stock], model=model)
    writer = Agent(name="writer", instructions="You write.", model=model)
    tools: Any = [keeper.as_tool("ask_keeper", "Ask who counts"), writer.as_tool("ask_writer", "Ask who writes")]
    lead = Agent(name="lead", instructions="You lead.", tools=tools, model=model)

    async def play(question: str) -> None:
        result = Runner.run_streamed(lead, question)
        async for _ in result.stream_events():
            pass

    await world.play(play)
    turns = world.compare(cancelled=world.failure_count > 0)
    if not world.failure_count:
        called = sorted({event.name for event in world.sink.records("episode-events") if isinstance(event, ToolCalled)})
        assert called == ["ask_keeper", "ask_writer", "stock"]
    if world.server.faults.seed is None:
        functions = sorted(turn.function for turn in turns)
        assert functions == sorted(["lead", "lead", "keeper", "keeper", "writer"] * 3)


async def test_a_person_who_approves_a_tool_of_a_run_that_was_saved(
    world: World, model: OpenAIChatCompletionsModel
) -> None:
    @function_tool(needs_approval=True)
    def order(item: str) -> str:
        """Order an item."""
        return f"{item} ordered"

    buyer = Agent(name="buyer", instructions="You buy.", model=model, tools=[order])

    async def play(question: str) -> None:
        saved = (await Runner.run(buyer, question)).to_state().to_string()
        state = await RunState.from_string(buyer, saved)
        for interruption in state.get_interruptions():
            (state.reject if "<e3>" in question else state.approve)(interruption)
        assert (await Runner.run(buyer, state)).interruptions == []

    await world.play(play)
    turns = world.compare()
    ran = [event for event in world.sink.records("episode-events") if isinstance(event, ToolCalled)]
    if not world.failure_count:
        assert [turn.function for turn in turns] == ["buyer"] * 6
        assert [(event.name, event.result) for event in ran] == [
            ("order", f"item of <e{number}> ordered") for number in (1, 2)
        ]


async def test_a_guardrail_with_an_agent_of_its_own(world: World, model: OpenAIChatCompletionsModel) -> None:
    guard = Agent(name="guard", instructions="Is it about bolts?", model=model)
    tripped = 0

    @input_guardrail
    async def only_bolts(context: Any, agent: Any, question: Any) -> GuardrailFunctionOutput:
        result = await Runner.run(guard, question, context=context.context)
        return GuardrailFunctionOutput(output_info=result.final_output, tripwire_triggered="<e2>" in str(question))

    keeper = Agent(name="keeper", model=model, tools=[stock], input_guardrails=[only_bolts])

    async def play(question: str) -> None:
        nonlocal tripped
        try:
            await Runner.run(keeper, question)
        except InputGuardrailTripwireTriggered:
            tripped += 1

    await world.play(play)
    turns = [turn for turn in world.compare(cancelled=True) if turn.untrainable_reason != "call_cancelled"]
    assert {turn.function for turn in turns} <= {"guard", "keeper"}
    assert world.failure_count or tripped == 1
