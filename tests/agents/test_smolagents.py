"""An agent after smolagents' documentation: tools and another agent side by side, in threads of the framework's own."""

import pytest
from smolagents import LogLevel, OpenAIModel, ToolCallingAgent, tool

from tests.agents.conftest import World
from tests.agents.model_server import ModelServer

pytestmark = pytest.mark.filterwarnings("ignore")


def stock(item: str) -> str:
    """Count what is in stock.

    Args:
        item: What to count.
    """
    return f"{item}: 7"


def agent_at(server: ModelServer, name: str, model: dict[str, str], **options: object) -> ToolCallingAgent:
    served = OpenAIModel(
        "agent", api_base=server.url, api_key="k", client_kwargs={"max_retries": 0}, retry=False, **model
    )
    quiet = {"verbosity_level": LogLevel.OFF, "max_steps": 2}
    return ToolCallingAgent(tools=[tool(stock)], model=served, name=name, description=name, **quiet, **options)


async def test_an_agent_that_runs_its_tools_and_another_agent_in_an_executor(world: World, server: ModelServer) -> None:
    free = {"tool_choice": "auto"}

    async def play(question: str) -> None:
        agent_at(server, "lead", free, managed_agents=[agent_at(server, "keeper", free)]).run(question)

    await world.play(play)
    turns = world.compare()
    assert world.failure_count or len(turns) == len(server.answers) > 3 * 3


async def test_a_turn_that_smolagents_forces_to_call_a_tool_is_not_trained(world: World, server: ModelServer) -> None:
    async def play(question: str) -> None:
        agent_at(server, "keeper", {}).run(question)

    await world.play(play)
    turns = world.compare()
    assert "sampling_constrained" in {turn.untrainable_reason for turn in turns}
