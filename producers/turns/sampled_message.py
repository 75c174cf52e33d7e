"""A message of the OpenAI form → a choice of an answer; any API's word for why it ended → OpenAI's word."""

from collections.abc import Mapping
from typing import Any

from rollbus.producers.turns.answer import AnswerChoice, text_of

_OPENAI_FINISH_REASONS = {
    **dict.fromkeys(("tool_call", "tool_calls", "tool_use", "tool-calls"), "tool_calls"),
    **dict.fromkeys(("stop", "end_turn", "stop_sequence", "completed"), "stop"),
    **dict.fromkeys(("length", "max_tokens", "max_output_tokens"), "length"),
    **dict.fromkeys(("content_filter", "content-filter", "safety"), "content_filter"),
}
"""OpenAI's finish reasons by the names, in small letters, that other APIs and tracing tools have for them."""


def spell_finish_reason(reason: str | None) -> str | None:
    """Return why an answer ended, as the OpenAI API spells it, whichever name another API or a tracing tool has."""
    return None if reason is None else _OPENAI_FINISH_REASONS.get(reason.lower(), reason)


def choice_of(message: Mapping[str, Any], index: int = 0) -> AnswerChoice:
    """Return a message of the OpenAI form as a sampled one: the texts of its parts joined, the rest as it is."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(text_of(part.get("text")) or "" for part in content if isinstance(part, Mapping)) or None
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    return AnswerChoice(
        index=index,
        content=text_of(content),
        refusal=text_of(message.get("refusal")),
        reasoning=text_of(reasoning),
        tool_calls=tuple(message.get("tool_calls") or ()),
        finish_reason=text_of(message.get("finish_reason")),
    )
