"""One prediction; what the scripted server says is not in DSPy's form, so it may ask again."""

import os
from contextlib import suppress

import dspy


def main() -> None:
    """Ask."""
    dspy.configure(lm=dspy.LM("openai/agent", api_base=os.environ["OPENAI_BASE_URL"], api_key="k", cache=False))
    with suppress(Exception):
        dspy.Predict("question -> answer")(question="How many bolts are there?")
