"""An agent with a tool, which the model calls itself, as litellm is told that it can."""

import os

import dspy
import litellm
from openinference.instrumentation.dspy import DSPyInstrumentor
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

trace.set_tracer_provider(TracerProvider())
DSPyInstrumentor().instrument()


def stock(item: str) -> str:
    """Say how many of an item are in stock."""
    return f"{item}: 7"


def main() -> None:
    """Ask."""
    litellm.register_model({"openai/agent": {"litellm_provider": "openai", "supports_function_calling": True}})
    lm = dspy.LM("openai/agent", api_base=os.environ["OPENAI_BASE_URL"], api_key="k", cache=False)
    adapter = dspy.ChatAdapter(use_native_function_calling=True)
    with dspy.context(lm=lm, adapter=adapter):
        agent = dspy.ReActV2("question -> answer", tools=[stock], max_iters=2)
        agent(question="How many bolts are there?")
