"""An agent with a tool, blocking and streamed."""

import asyncio
import os

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

trace.set_tracer_provider(TracerProvider())
Agent.instrument_all()
provider = OpenAIProvider(base_url=os.environ["OPENAI_BASE_URL"], api_key="k")
keeper = Agent(OpenAIChatModel("agent", provider=provider), name="keeper")


@keeper.tool_plain
def stock(item: str) -> str:
    """Say how many of an item are in stock."""
    return f"{item}: 7"


async def ask() -> None:
    """Ask, once streamed."""
    await keeper.run("How many bolts are there?")
    async with keeper.run_stream("And nuts?") as result:
        async for _ in result.stream_text():
            pass


def main() -> None:
    """Ask."""
    asyncio.run(ask())
