"""The turns of an episode → the whole prompt of each.

A turn carries only the messages that no earlier turn of its writer carried, the number of messages before them, and the
hash of those. That is enough to restore every prompt, unless a turn was lost: then the turns behind it are named.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollbus.schemas.ids import messages_hash

Message = dict[str, Any]
"""The fields of a `Message` that are set, as ClickHouse keeps them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTurn:
    """One row of the table `turns`."""

    event_id: str
    writer_id: str
    prefix_count: int
    prefix_hash: str
    added_messages: tuple[Message, ...]
    completion: Message
    tools: str = ""
    """JSON of the tool schemas that it was offered, even if an earlier turn carried them."""


@dataclass(frozen=True, slots=True)
class PromptedTurn:
    """A turn with its whole prompt."""

    event_id: str
    prompt: tuple[Message, ...]
    completion: Message
    tools: str = ""

    @property
    def messages(self) -> tuple[Message, ...]:
        """Return prompt and answer."""
        return (*self.prompt, self.completion)


def restore_prompts(turns: Iterable[StoredTurn]) -> tuple[list[PromptedTurn], list[str]]:
    """Return the turns of one episode with their prompts, and the event ids of turns whose prompt is incomplete."""
    exchanges: list[PromptedTurn] = []
    incomplete: list[str] = []
    histories: dict[str, list[tuple[Message, ...]]] = {}
    for turn in turns:
        known = histories.setdefault(turn.writer_id, [])
        prefix = _find_prefix(turn, known)
        if prefix is None:
            incomplete.append(turn.event_id)
            continue
        exchange = PromptedTurn(turn.event_id, (*prefix, *turn.added_messages), turn.completion, turn.tools)
        known.append(exchange.messages)
        exchanges.append(exchange)
    return exchanges, incomplete


def _find_prefix(turn: StoredTurn, known: Sequence[tuple[Message, ...]]) -> tuple[Message, ...] | None:
    if turn.prefix_count == 0:
        return ()
    for history in reversed(known):
        prefix = history[: turn.prefix_count]
        if len(prefix) == turn.prefix_count and messages_hash(prefix) == turn.prefix_hash:
            return prefix
    return None


def whole_conversations(exchanges: Sequence[PromptedTurn]) -> list[PromptedTurn]:
    """Return the exchanges that no later one continues."""
    return [
        exchange
        for index, exchange in enumerate(exchanges)
        if not any(later.prompt[: len(exchange.messages)] == exchange.messages for later in exchanges[index + 1 :])
    ]


def chat_message(message: Mapping[str, Any]) -> Message | None:
    """Return a message in OpenAI's form; None for one with more than text (pictures, sound), or less (withheld)."""
    content = message.get("content")
    if message.get("parts"):
        parts = _read_objects(message["parts"])
        if parts is None or any(part.get("type") not in {"text", "input_text", "output_text"} for part in parts):
            return None
        content = "".join(part.get("text", "") for part in parts)
    chat: Message = {"role": message["role"], "content": content}
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
    """Return a JSON list of objects; None if the text was withheld or masked and is not one any more."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, list) and all(isinstance(each, dict) for each in found) else None
