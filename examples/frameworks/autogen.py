"""An assistant with a tool."""

import asyncio
import os

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

trace.set_tracer_provider(TracerProvider())


def stock(item: str) -> str:
    """Say how many of an item are in stock."""
    return f"{item}: 7"


async def ask() -> None:
    """Ask."""
    abilities = {"vision": False, "function_calling": True, "json_output": False, "structured_output": False}
    client = OpenAIChatCompletionClient(
        model="agent",
        base_url=os.environ["OPENAI_BASE_URL"],
        api_key="k",
        model_info={**abilities, "family": "unknown"},
    )
    await AssistantAgent("keeper", client, tools=[stock]).run(task="How many bolts are there?")
    await client.close()


def main() -> None:
    """Ask."""
    asyncio.run(ask())
