"""An agent with a tool, streamed as every call of it is."""

import os

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from strands import Agent, tool
from strands.models.openai import OpenAIModel

trace.set_tracer_provider(TracerProvider())


@tool
def stock(item: str) -> str:
    """Say how many of an item are in stock."""
    return f"{item}: 7"


def main() -> None:
    """Ask."""
    options = {"base_url": os.environ["OPENAI_BASE_URL"], "api_key": "k"}
    keeper = Agent(
        OpenAIModel(client_args=options, model_id="agent"), name="keeper", tools=[stock], callback_handler=None
    )
    keeper("How many bolts are there?")
