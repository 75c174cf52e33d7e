"""Agents after the ADK's documentation: a sequence with branches side by side inside it, and a transfer."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
from google.adk.agents import BaseAgent, LlmAgent, ParallelAgent, SequentialAgent
from google.adk.models.lite_llm import LiteLlm
from litellm.litellm_core_utils.logging_worker import GLOBAL_LOGGING_WORKER

from tests.agents.conftest import World
from tests.agents.model_server import ModelServer
from tests.producers.integrations.agent_server import stock
from tests.producers.integrations.test_adk import ask

pytestmark = pytest.mark.filterwarnings("ignore")  # LiteLLM and the ADK warn of themselves


def agent_of(server: ModelServer, name: str, **options: Any) -> LlmAgent:
    """An agent on LiteLLM that repeats nothing by itself."""
    model = LiteLlm(model="openai/agent", api_key="k", api_base=server.url, max_retries=0, num_retries=0)
    return LlmAgent(name=name, model=model, instruction=f"You are {name}.", **options)


async def play_and_compare(world: World, agent: Callable[[], Any], functions: list[str]) -> None:
    """Let the agent play, and hold its turns and their agents' names against what is expected."""

    async def play(question: str) -> None:
        await ask(agent(), question=question)

    await world.play(play)
    await GLOBAL_LOGGING_WORKER.flush()
    gc.collect()  # a call of LiteLLM that was cancelled before it began warns here, and not in another test
    turns = world.compare(cancelled=world.failure_count > 0)
    assert world.failure_count or sorted(turn.function for turn in turns) == sorted(functions * 3)


async def test_a_sequence_with_parallel_branches(world: World, server: ModelServer) -> None:
    def agent() -> SequentialAgent:
        sides: list[BaseAgent] = [agent_of(server, "left", tools=[stock]), agent_of(server, "right")]
        branches = ParallelAgent(name="branches", sub_agents=sides)
        return SequentialAgent(name="all", sub_agents=[branches, agent_of(server, "writer")])

    await play_and_compare(world, agent, ["left", "left", "right", "writer"])


async def test_an_agent_that_transfers_to_another(world: World, server: ModelServer) -> None:
    server._arguments = {"agent_name": "keeper"}

    def agent() -> LlmAgent:
        keeper = agent_of(server, "keeper", disallow_transfer_to_parent=True, disallow_transfer_to_peers=True)
        return agent_of(server, "front", sub_agents=[keeper])

    await play_and_compare(world, agent, ["front", "keeper"])
