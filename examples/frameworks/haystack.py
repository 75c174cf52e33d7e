"""An agent with a tool, in a pipeline, blocking and streamed."""

import os

from haystack import Pipeline, tracing
from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import tool
from haystack_integrations.tracing.opentelemetry import OpenTelemetryTracer
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

trace.set_tracer_provider(TracerProvider())
tracing.enable_tracing(OpenTelemetryTracer(trace.get_tracer("shop")))
tracing.tracer.is_content_tracing_enabled = True


@tool
def stock(item: str) -> str:
    """Say how many of an item are in stock."""
    return f"{item}: 7"


def main() -> None:
    """Ask."""
    for callback in (None, lambda chunk: None):
        generator = OpenAIChatGenerator(
            model="agent", api_base_url=os.environ["OPENAI_BASE_URL"], streaming_callback=callback
        )
        pipeline = Pipeline()
        pipeline.add_component("keeper", Agent(chat_generator=generator, tools=[stock]))
        pipeline.run({"keeper": {"messages": [ChatMessage.from_user("How many bolts are there?")]}})
