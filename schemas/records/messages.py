"""Chat messages to plain fields and hashes, the same in producers and in assembly.

A field that is None is left out, so that a message hashes alike however many fields a later version adds.
"""

from collections.abc import Iterable

from rollbus.schemas.ids import messages_hash
from rollbus.schemas.records.events import Message

MESSAGE_FIELDS = ("role", "content", "name", "tool_call_id", "tool_calls", "parts", "reasoning")


def message_fields(message: Message) -> dict[str, str]:
    """Return the fields that are set."""
    return {name: value for name in MESSAGE_FIELDS if (value := getattr(message, name)) is not None}


def history_hash(messages: Iterable[Message]) -> str:
    """Return the hash of a history of messages: what `TurnRecorded.prefix_hash` holds of the prefix."""
    return messages_hash(map(message_fields, messages))
