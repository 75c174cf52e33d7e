"""Chat messages to plain fields and hashes, the same in producers and in assembly.

A field that is None is left out, so that a message hashes alike however many fields a later version adds.
"""

import json
from collections.abc import Iterable

from rollbus.schemas.ids import canonical_json, messages_hash
from rollbus.schemas.records.events import Message

MESSAGE_FIELDS = ("role", "content", "name", "tool_call_id", "tool_calls", "parts", "reasoning")


def message_fields(message: Message) -> dict[str, str]:
    """Return the fields that are set; next to tool calls an empty content is none, as frameworks send it back."""
    fields = {name: value for name in MESSAGE_FIELDS if (value := getattr(message, name)) is not None}
    if message.tool_calls is not None:
        fields["tool_calls"] = _without_spacing(message.tool_calls)
        if fields.get("content") == "":
            del fields["content"]
    return fields


def _without_spacing(tool_calls: str) -> str:
    """Return tool calls with their arguments spaced in one way: frameworks read them, and write them again."""
    try:
        calls = json.loads(tool_calls)
        for call in calls:
            call["function"]["arguments"] = canonical_json(json.loads(call["function"]["arguments"]))
        text = canonical_json(calls)
        text.encode()  # half a character that the model wrote as an escape is not UTF-8, so it stays one
    except (ValueError, TypeError, KeyError, RecursionError):  # not in OpenAI's form, no JSON, or nested too deep
        return tool_calls
    return text


def history_hash(messages: Iterable[Message]) -> str:
    """Return the hash of a history of messages: what `TurnRecorded.prefix_hash` holds of the prefix."""
    return messages_hash(map(message_fields, messages))
