"""A message of the OpenAI form, and why its model ended it in the words of any API → a choice of an answer."""

from collections.abc import Mapping
from typing import Any

from rollbus.producers.turns.answer import AnswerChoice, text_of

FINISH_REASONS = {
    **dict.fromkeys(("tool_call", "tool_calls", "tool_use", "tool-calls"), "tool_calls"),
    **dict.fromkeys(("stop", "end_turn", "stop_sequence", "completed"), "stop"),
    **dict.fromkeys(("length", "max_tokens", "max_output_tokens"), "length"),
    **dict.fromkeys(("content_filter", "content-filter", "safety"), "content_filter"),
}


def spell_finish_reason(reason: str | None) -> str | None:
    """Return why an answer ended, as the OpenAI API spells it, whichever name another API or a tracing tool has."""
    return None if reason is None else FINISH_REASONS.get(reason.lower(), reason)


def choice_of(message: Mapping[str, Any], index: int = 0) -> AnswerChoice:
    """Return a message of the OpenAI form as a sampled one."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping)) or None
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    return AnswerChoice(
        index=index,
        content=text_of(content),
        refusal=text_of(message.get("refusal")),
        reasoning=text_of(reasoning),
        tool_calls=tuple(message.get("tool_calls") or ()),
        finish_reason=text_of(message.get("finish_reason")),
    )
