"""A prediction and a tool; what the scripted server says is not in DSPy's form, so it may ask again."""

import os
from contextlib import suppress

import dspy
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
    dspy.configure(lm=dspy.LM("openai/agent", api_base=os.environ["OPENAI_BASE_URL"], api_key="k", cache=False))
    with suppress(Exception):
        dspy.Predict("question -> answer")(question="How many bolts are there?")
    dspy.Tool(stock)(item="bolts")
