"""Conversations and preference pairs → the rows that trainers read. Pure.

| layout | row | read by |
|---|---|---|
| `messages` | messages | TRL's SFTTrainer, NeMo Customizer, OpenAI |
| `prompt-completion` | prompt, completion | TRL's SFTTrainer, with the loss on the completion alone |
| `preference` | prompt, chosen, rejected | TRL's DPOTrainer |
| `nemo-dpo` | prompt, chosen_response, rejected_response | NeMo Customizer |
| `evaluation` | id, task, prompt, reference, reference_reward, attempts | a held-out set of your own |
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rollbus.consumers.export.preferences import Candidate, ChatMessage, PreferencePair

Row = dict[str, Any]
SftLayout = Literal["messages", "prompt-completion"]
DpoLayout = Literal["preference", "nemo-dpo"]


def conversation_row(messages: Sequence[ChatMessage], *, tools: str = "", **facts: Any) -> Row:
    """Return a whole conversation; trainers learn every message of the assistant."""
    return {"messages": [dict(message) for message in messages], **_tools(tools), **facts}


def completion_row(candidate: Candidate) -> Row:
    """Return one answer and its prompt; trainers learn only the answer."""
    return {
        "prompt": [dict(message) for message in candidate.prompt],
        "completion": [dict(candidate.completion)],
        **_tools(candidate.tools),
        **candidate.facts,
    }


def evaluation_row(
    prompt: Sequence[ChatMessage],
    answer: ChatMessage,
    *,
    attempts: int,
    facts: Mapping[str, Any],
    tools: str = "",
) -> Row:
    """Return one problem: its prompt, the answer with the highest reward so far, and how often it was tried."""
    return {
        "id": facts["example_id"] or facts["trajectory_id"],
        "task": facts["task"],
        "prompt": [dict(message) for message in prompt],
        **_tools(tools),
        "reference": dict(answer),
        "reference_reward": facts["reward"],
        "attempts": attempts,
    }


def preference_row(pair: PreferencePair) -> Row:
    """Return a pair in TRL's form, with the scores and event ids of both answers."""
    return {
        "prompt": [dict(message) for message in pair.prompt],
        "chosen": [dict(pair.chosen.completion)],
        "rejected": [dict(pair.rejected.completion)],
        **_tools(pair.chosen.tools),
        "chosen_score": pair.chosen.score,
        "rejected_score": pair.rejected.score,
        "chosen_id": pair.chosen.id,
        "rejected_id": pair.rejected.id,
    }


def nemo_dpo_row(pair: PreferencePair) -> Row | None:
    """Return a pair in NeMo Customizer's form; None if it has a tool call, as the form knows only text."""
    if any(_has_tool_call(message) for message in (*pair.prompt, pair.chosen.completion, pair.rejected.completion)):
        return None
    return {
        "prompt": [{"role": message["role"], "content": message.get("content") or ""} for message in pair.prompt],
        "chosen_response": pair.chosen.completion.get("content") or "",
        "rejected_response": pair.rejected.completion.get("content") or "",
    }


def _has_tool_call(message: ChatMessage) -> bool:
    return bool(message.get("tool_calls")) or message["role"] == "tool"


def _tools(tools: str) -> Row:
    return {"tools": tools} if tools else {}
