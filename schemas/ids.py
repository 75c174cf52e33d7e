"""Deterministic ids and hashes: the same facts give the same id on every machine and in every replay.

Ids never include a location (topic, partition, offset), a clock or a random number.
"""

import hashlib
import json
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from json.encoder import encode_basestring
from typing import Any, NoReturn

NAMESPACE = uuid.UUID("5f0c3a1e-6d0b-5c57-9a40-0f3a3a7d9f21")
"""Root of every uuid5 that rollbus makes; changing it would change every id."""

PAUSE_PREFIX = "pause:"
"""Begins the name by which a paused episode is resumed from a process that does not know its id."""
CONVERSATION_PREFIX = "conversation:"
"""Begins the alias by which a conversation is known."""
SEPARATOR = "\x1f"
"""ASCII's unit separator, which no id may hold."""
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_HASH_DIGITS = 32
"""128 bits: no accidental collision at any volume that a log can hold."""


def parse_json(
    text: str | bytes, *, is_strict: bool = False, object_hook: Callable[[dict[str, Any]], Any] | None = None
) -> Any:
    """Return what JSON from outside holds; raises ValueError, also where it is nested too deep for Python's parser.

    With `is_strict` also for NaN and the infinities, which Python reads and JSON does not have.
    """
    try:
        return json.loads(text, object_hook=object_hook, parse_constant=_refuse_constant if is_strict else None)
    except RecursionError as error:
        raise ValueError("JSON that is nested too deep") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def stable_id(kind: str, *parts: object) -> str:
    """uuid5 of a kind and its parts, as text; without a UUID object, which takes longer than the hash.

    Parts may come from strangers, as the key of a feedback does, and hold half a character.
    """
    name = SEPARATOR.join((kind, *map(str, parts))).encode("utf-8", "surrogatepass")
    digits = hashlib.sha1(NAMESPACE.bytes + name, usedforsecurity=False).hexdigest()
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-5{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:32]}"


def event_id(episode_id: str, writer_id: str, sequence: int) -> str:
    """Id of the event that a writer sent as its `sequence`-th of an episode."""
    return stable_id("event", episode_id, writer_id, sequence)


def pause_name(thread: object) -> str:
    """Name of the pause of what runs under a framework's id of a thread; ids of sub-agents follow slashes."""
    return PAUSE_PREFIX + escape(str(thread), "/")


def conversation_name(conversation: object) -> str:
    """Alias that passes from each episode of a conversation to the next."""
    return f"{CONVERSATION_PREFIX}{conversation}"


def join_parts(*parts: object) -> str:
    """Join parts with colons so that no other parts give the same text: `%3A` is a colon within a part, `%25` a `%`."""
    return ":".join(escape(str(part), ":") for part in parts)


def escape(text: str, character: str) -> str:
    """Return a text without a character, another for each text: what it is written as begins with a percent sign."""
    return text.replace("%", "%25").replace(character, f"%{ord(character):X}")


def reward_event_id(target: str, name: str, key: str) -> str:
    """Id of a reward reported under the caller's own key: reporting it again is the same event."""
    return stable_id("reward", target, name, key)


def trajectory_id(episode_id: str) -> str:
    """Id of the one trajectory that an episode becomes."""
    return stable_id("trajectory", episode_id)


def content_hash(value: Any) -> str:
    """SHA-256 (first 128 bits, hex) of a value's canonical JSON."""
    return hash_bytes(canonical_json(value).encode())


def hash_bytes(data: bytes) -> str:
    """SHA-256 of bytes, first 128 bits as hex."""
    return hashlib.sha256(data).hexdigest()[:_HASH_DIGITS]


def canonical_json(value: Any) -> str:
    """JSON with sorted keys, no spaces and no NaN: equal values give equal text."""
    return _CANONICAL.encode(value)


def messages_hash(messages: Iterable[Mapping[str, Any]]) -> str:
    """Hash of a chat history; a producer and assembly compute it alike, which shows edited histories."""
    return hash_bytes(f"[{','.join(map(_flat_json, messages))}]".encode())


def _flat_json(message: Mapping[str, Any]) -> str:
    """Canonical JSON of a message, whose values are mostly text: an encoder for any value takes twice as long."""
    if not all(type(value) is str for value in message.values()):
        return canonical_json(message)
    fields = [f"{encode_basestring(name)}:{encode_basestring(value)}" for name, value in sorted(message.items())]
    return f"{{{','.join(fields)}}}"


def group_hint(*, group_id: str | None, task: str, example_id: str | None, opening_hash: str) -> str:
    """Kafka key that brings possible members of a group together: explicit group, else example, else opening."""
    if group_id is not None:
        return f"group:{group_id}"
    if example_id is not None:
        return join_parts("example", task, example_id)
    return join_parts("opening", task, opening_hash)


def without_version(model: str) -> str:
    """Return the name of a model without the version that follows `@`."""
    return model.partition("@")[0]


def natural_order(name: str) -> tuple[list[tuple[int, str]], str]:
    """Key that sorts names with their numbers as numbers: `e2` before `e10`. Only equal names have equal keys.

    Numbers compare by their digits, for a name may have more of them than Python takes into an int.
    """
    parts = re.split(r"(\d+)", name)
    keys = ((len(part.lstrip("0")), part.lstrip("0")) if part.isdecimal() else (-1, part) for part in parts)
    return list(keys), name
