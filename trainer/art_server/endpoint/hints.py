"""A recorded prompt and a hint → the prompt with the hint at the end of its last message, token for token otherwise.

The chat is not rendered again: what the policy saw stays as it was recorded. What every prompt of the template ends
with is found by rendering short questions that differ; the hint goes before it. A hint is a user's words: tokens that
mean something to the template are taken out of it, so it cannot end the message that it is in.
"""

from collections.abc import Sequence
from typing import Any

from rollbus.trainer.art_server.endpoint.tokenizer import render_chat

WORDS = "\n\n(What I will say once I have seen your answer: {hint})"
MOST_CHARACTERS = 1_000
"""Of a hint: about 250 tokens. A user's correction says what it is about at its beginning."""
QUESTIONS = ("0", "x", "?")
"""No two end alike."""


class HintPlace:
    """Puts hints into the prompts of one tokenizer's chat template."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._marks = frozenset(tokenizer.get_added_vocab().values()) | frozenset(tokenizer.all_special_ids)
        prompts = [render_chat(tokenizer, [{"role": "user", "content": text}], None) for text in QUESTIONS]
        self._ending = _common_ending(prompts)

    def __call__(self, prompt: Sequence[int], hint: str) -> list[int] | None:
        """Return the prompt with the hint; None if it does not end as the template lets a prompt end."""
        size = len(self._ending)
        if not size or list(prompt[-size:]) != self._ending:
            return None
        text = WORDS.format(hint=" ".join(hint[:MOST_CHARACTERS].split()))
        tokens = self._tokenizer.encode(text, add_special_tokens=False)
        return [*prompt[:-size], *(token for token in tokens if token not in self._marks), *self._ending]


def _common_ending(prompts: Sequence[Sequence[int]]) -> list[int]:
    size = 0
    while size < min(map(len, prompts)) and len({prompt[-size - 1] for prompt in prompts}) == 1:
        size += 1
    return list(prompts[0][len(prompts[0]) - size :])
