"""Agents after the ADK's documentation: a sequence with branches side by side inside it."""

import gc
from typing import Any

import pytest
from google.adk.agents import LlmAgent, ParallelAgent, SequentialAgent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types
from litellm.litellm_core_utils.logging_worker import GLOBAL_LOGGING_WORKER

from tests.agents.conftest import World
from tests.agents.model_server import ModelServer

pytestmark = pytest.mark.filterwarnings("ignore")  # LiteLLM and the ADK warn of themselves


def stock(item: str) -> str:
    """Count what is in stock."""
    return f"{item}: 7"


async def test_a_sequence_with_parallel_branches(world: World, server: ModelServer) -> None:
    def agent(name: str, **options: Any) -> LlmAgent:
        model = LiteLlm(model="openai/agent", api_key="k", api_base=server.url, max_retries=0, num_retries=0)
        return LlmAgent(name=name, model=model, instruction=f"You are {name}.", **options)

    async def play(question: str) -> None:
        branches = ParallelAgent(name="branches", sub_agents=[agent("left", tools=[stock]), agent("right")])
        runner = InMemoryRunner(
            agent=SequentialAgent(name="all", sub_agents=[branches, agent("writer")]), app_name="shop"
        )
        session = await runner.session_service.create_session(app_name="shop", user_id="u")
        message = types.Content(role="user", parts=[types.Part(text=question)])
        async for _ in runner.run_async(user_id="u", session_id=session.id, new_message=message):
            pass
        await runner.close()

    await world.play(play)
    await GLOBAL_LOGGING_WORKER.flush()
    gc.collect()  # a call of LiteLLM that was cancelled before it began warns here, and not in another test
    turns = world.compare(cancelled=world.failed > 0)
    assert world.failed or sorted(turn.function for turn in turns) == sorted(["left", "left", "right", "writer"] * 3)
