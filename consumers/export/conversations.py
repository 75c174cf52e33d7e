"""The turns of an episode → the whole prompt of each.

A turn carries only the messages that no earlier turn of its writer carried, the number of messages before them, and the
hash of those. That is enough to restore every prompt, unless a turn was lost: then the turns behind it are named.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollbus.schemas.ids import messages_hash, parse_json
from rollbus.schemas.records.events import Message
from rollbus.schemas.records.messages import message_fields

StoredMessage = dict[str, Any]
"""The fields of a `Message` that are set, as ClickHouse keeps them: tool calls as the model wrote them."""


UNANSWERED = frozenset({"call_failed", "call_timed_out", "call_cancelled", "truncated_stream"})
"""Verdicts on turns whose answer did not come, or broke off."""
_ANSWER_FIELDS = ("content", "parts", "tool_calls", "reasoning")
"""A completion without any of them says nothing: the call failed, or its texts were not traced."""
_TEXT_FIELDS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Content parts that are text, and the field that holds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTurn:
    """One row of the table `turns`."""

    event_id: str
    writer_id: str
    prefix_count: int
    prefix_hash: str
    added_messages: tuple[StoredMessage, ...]
    completion: StoredMessage
    tools: str = ""
    """JSON of the tool schemas that it was offered, even if an earlier turn carried them."""
    verdict: str = ""
    """Why it cannot be trained on."""


@dataclass(frozen=True, slots=True)
class PromptedTurn:
    """A turn with its whole prompt."""

    event_id: str
    prompt: tuple[StoredMessage, ...]
    completion: StoredMessage
    tools: str = ""
    verdict: str = ""

    @property
    def has_answer(self) -> bool:
        """Whether the model said something, to its end."""
        return self.verdict not in UNANSWERED and any(self.completion.get(name) is not None for name in _ANSWER_FIELDS)

    @property
    def messages(self) -> tuple[StoredMessage, ...]:
        """Return prompt and answer."""
        return (*self.prompt, self.completion)


def restore_prompts(turns: Iterable[StoredTurn]) -> tuple[list[PromptedTurn], list[str]]:
    """Return the turns of one episode with their prompts, and the event ids of turns whose prompt is incomplete."""
    exchanges: list[PromptedTurn] = []
    incomplete: list[str] = []
    histories_by_writer: dict[str, list[tuple[StoredMessage, ...]]] = {}
    for turn in turns:
        histories = histories_by_writer.setdefault(turn.writer_id, [])
        prefix = _find_prefix(turn, histories)
        if prefix is None:
            incomplete.append(turn.event_id)
            continue
        prompt = (*prefix, *turn.added_messages)
        exchange = PromptedTurn(turn.event_id, prompt, turn.completion, turn.tools, turn.verdict)
        histories.append(exchange.messages)
        exchanges.append(exchange)
    return exchanges, incomplete


def _find_prefix(turn: StoredTurn, histories: Sequence[tuple[StoredMessage, ...]]) -> tuple[StoredMessage, ...] | None:
    """Return the history that the turn continues; its hash is over messages as `message_fields` gives them."""
    if turn.prefix_count == 0:
        return ()
    for history in reversed(histories):
        prefix = history[: turn.prefix_count]
        if len(prefix) == turn.prefix_count and messages_hash(map(_comparable, prefix)) == turn.prefix_hash:
            return prefix
    return None


def _comparable(message: StoredMessage) -> dict[str, str]:
    """Return the form of a message that does not depend on how a framework spaced its tool calls."""
    return message_fields(Message(**message)) if message.get("tool_calls") else message


def whole_conversations(exchanges: Sequence[PromptedTurn]) -> list[PromptedTurn]:
    """Return the exchanges that no later one continues."""
    prompts = [list(map(_comparable, exchange.prompt)) for exchange in exchanges]
    return [
        exchange
        for index, exchange in enumerate(exchanges)
        if (messages := [*prompts[index], _comparable(exchange.completion)])
        and not any(later[: len(messages)] == messages for later in prompts[index + 1 :])
    ]


def chat_message(message: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a message in OpenAI's form; None for one with more than text (pictures, sound), or less (withheld).

    A refusal is what the model answered, so it is the content.
    """
    content = message.get("content")
    if message.get("parts"):
        parts = _read_objects(message["parts"])
        if parts is None or any(part.get("type") not in _TEXT_FIELDS for part in parts):
            return None
        texts = [part.get(_TEXT_FIELDS[part["type"]]) or "" for part in parts]
        if not all(isinstance(text, str) for text in texts):
            return None
        content = (content or "") + "".join(texts)
    chat: dict[str, Any] = {"role": message["role"], "content": content}
    if message.get("tool_calls"):
        chat["tool_calls"] = _read_objects(message["tool_calls"])
        if chat["tool_calls"] is None:
            return None
    for name in ("tool_call_id", "name"):
        if message.get(name) is not None:
            chat[name] = message[name]
    if message.get("reasoning"):
        chat["reasoning_content"] = message["reasoning"]
    return chat


def _read_objects(text: str) -> list[Any] | None:
    """Return a JSON list of objects; None if the text was withheld or masked and is not one any more, or nested too
    deep.
    """
    try:
        values = parse_json(text)
    except ValueError:
        return None
    return values if isinstance(values, list) and all(isinstance(value, dict) for value in values) else None
