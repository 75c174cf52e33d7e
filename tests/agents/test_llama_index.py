"""Agents after LlamaIndex's documentation: a workflow of two agents, one of which hands over to the other."""

from typing import Any

import httpx
import pytest
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.llms.openai import OpenAI

from tests.agents.conftest import World
from tests.agents.model_server import ModelServer
from tests.producers.integrations.agent_server import stock

pytestmark = pytest.mark.filterwarnings("ignore")  # LlamaIndex looks at every attribute of its own agents


async def test_a_workflow_of_two_agents(world: World, server: ModelServer) -> None:
    server._arguments = {"to_agent": "writer"}
    async with httpx.AsyncClient() as client:
        options: Any = {"api_key": "k", "api_base": server.url, "max_retries": 0, "async_http_client": client}
        llm = OpenAI(model="gpt-4o-mini", **options)
        keeper = FunctionAgent(name="keeper", description="counts", llm=llm, can_handoff_to=["writer"])
        writer = FunctionAgent(name="writer", description="writes", llm=llm, tools=[stock], can_handoff_to=[])

        async def play(question: str) -> None:
            await AgentWorkflow(agents=[keeper, writer], root_agent="keeper").run(question)

        await world.play(play)
    turns = world.compare()
    assert world.failure_count or {turn.function for turn in turns} == {"keeper", "writer"}
