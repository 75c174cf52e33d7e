"""A chat generator, blocking and streamed."""

import os

from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage


def main() -> None:
    """Ask."""
    for callback in (None, lambda chunk: None):
        generator = OpenAIChatGenerator(
            model="agent", api_base_url=os.environ["OPENAI_BASE_URL"], streaming_callback=callback
        )
        generator.run([ChatMessage.from_user("How many bolts are there?")])
