"""An agent with a tool, blocking and streamed."""

import os

from agno.agent import Agent
from agno.models.openai.like import OpenAILike
from openinference.instrumentation.agno import AgnoInstrumentor
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

trace.set_tracer_provider(TracerProvider())
AgnoInstrumentor().instrument()


def stock(item: str) -> str:
    """Say how many of an item are in stock."""
    return f"{item}: 7"


def main() -> None:
    """Ask."""
    model = OpenAILike(id="agent", base_url=os.environ["OPENAI_BASE_URL"], api_key="k")
    keeper = Agent(name="keeper", model=model, tools=[stock], telemetry=False)
    keeper.run("How many bolts are there?")
    for _ in keeper.run("And nuts?", stream=True):
        pass
