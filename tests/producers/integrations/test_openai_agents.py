"""OpenAI Agents on wrapped clients: turns with the server's tokens, and the agent's structure."""

import pytest
from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled

from rollbus.producers import MemorySink, Recorder
from rollbus.producers.integrations.openai_agents import RollbusHooks, record_agent
from tests.producers.integrations.agent_server import AgentServer, assert_agent, assert_sampled, stock
from tests.producers.recorded_events import recorded_events, turns

set_tracing_disabled(True)
COUNT = function_tool(stock)


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_agents_turns_are_trainable_with_the_servers_ids(
    recorder: Recorder, sink: MemorySink, server: AgentServer, streamed: bool
) -> None:
    agent = record_agent(Agent(name="keeper", tools=[COUNT]), recorder, client=server.async_client(), model="agent")
    async with recorder.episode(task="stock"):
        if streamed:
            stream = Runner.run_streamed(agent, "How many bolts?", hooks=RollbusHooks(recorder))
            async for _ in stream.stream_events():
                pass
        else:
            result = await Runner.run(agent, "How many bolts?", hooks=RollbusHooks(recorder))
            assert result.final_output == server.final
    assert_agent(server, recorded_events(recorder, sink), streamed=streamed)


async def test_agents_that_hand_off_are_each_recorded_under_their_names(recorder: Recorder, sink: MemorySink) -> None:
    server = AgentServer(tool="transfer_to_keeper", arguments={})
    chat_model = OpenAIChatCompletionsModel("agent", server.async_client())
    keeper, front = Agent(name="keeper", model=chat_model), Agent(name="front", model=chat_model)
    keeper.handoffs, front.handoffs = [front], [keeper]
    record_agent(front, recorder)
    async with recorder.episode(task="stock"):
        result = await Runner.run(front, "How many bolts?", hooks=RollbusHooks(recorder))
    assert (result.last_agent.name, result.final_output) == ("keeper", server.final)
    recorded_turns = turns(recorder, sink)
    assert_sampled(server, recorded_turns)
    assert [turn.function for turn in recorded_turns] == ["front", "keeper"]


async def test_an_agent_used_as_a_tool_is_recorded_under_its_name(recorder: Recorder, sink: MemorySink) -> None:
    server = AgentServer(tool="ask_keeper", arguments={"input": "How many bolts?"})
    chat_model = OpenAIChatCompletionsModel("agent", server.async_client())
    keeper = Agent(name="keeper", model=chat_model)
    front = Agent(name="front", model=chat_model, tools=[keeper.as_tool("ask_keeper", "Ask the keeper")])
    record_agent(front, recorder)
    async with recorder.episode(task="stock"):
        await Runner.run(front, "How many bolts?", hooks=RollbusHooks(recorder), max_turns=4)
    recorded_turns = turns(recorder, sink)
    assert_sampled(server, recorded_turns)
    assert {turn.function for turn in recorded_turns} == {"front", "keeper"}


async def test_a_model_that_is_not_recorded_gives_turns_that_say_so(
    recorder: Recorder, sink: MemorySink, server: AgentServer
) -> None:
    agent = Agent(
        name="keeper",
        tools=[COUNT],
        model=OpenAIChatCompletionsModel("agent", server.async_client()),
        instructions="!",
    )
    async with recorder.episode(task="stock"):
        await Runner.run(agent, "How many bolts?", hooks=RollbusHooks(recorder))
    first, last = turns(recorder, sink)
    assert first.untrainable_reason == last.untrainable_reason == "not_captured"
    assert [message.role for message in first.added_messages] == ["system", "user"]
    assert last.completion.content == server.final


def test_an_agent_without_a_chat_completions_model_is_refused(recorder: Recorder, server: AgentServer) -> None:
    with pytest.raises(TypeError, match="'keeper' has model None"):
        record_agent(Agent(name="keeper"), recorder)
    with pytest.raises(TypeError, match="OpenAIResponsesModel"):
        record_agent(Agent(name="k", model=OpenAIResponsesModel("m", server.async_client())), recorder, model="m")
