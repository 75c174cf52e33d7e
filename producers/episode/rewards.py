"""Write a reward that is not part of an episode's own sequence: under the caller's key, by alias, or after the end.

Its id comes from target, name and key, so the same report sent twice, from any process, is one event.
"""

from collections.abc import Mapping
from typing import Any, get_args

from rollbus.producers.episode.outbox import Outbox, address_of
from rollbus.producers.turns.answer import text_of
from rollbus.schemas import ids
from rollbus.schemas.records.events import RewardReported, Signal
from rollbus.schemas.topics import ALIASES

KEYED = -1
"""The sequence of an event whose id comes from the caller's key."""
NEXT_TURN = "next_turn"
"""Name of a report of what the user did next."""
REWARD = "reward"
"""Name of a report where the caller gives none."""
REPLY: Signal = "reply"
MAX_MESSAGE_CHARACTERS = 4_000
"""Of the user's next message, in the record that links it to the turn before; its own turn has it whole."""


def send_reward(
    outbox: Outbox, episode_id: str, alias: str | None, fields: Mapping[str, Any], key: str | None, started_at_ms: int
) -> str | None:
    """Write a reward whose id comes from the caller's key (or is new without one)."""
    alias, fields = None if alias is None else nonempty_text(alias), encodable_texts(fields)
    target = alias if alias is not None else episode_id
    event_id = ids.reward_event_id(target, str(fields["name"]), outbox.new_id() if key is None else str(key))
    envelope = outbox.envelope(
        event_id=event_id,
        episode_id=episode_id,
        writer_id=outbox.writer_id,
        sequence=KEYED,
        started_at_ms=started_at_ms,
    )
    reward = RewardReported(**envelope, alias=alias, **fields)
    topic, kafka_key = address_of(episode_id) if alias is None else (ALIASES, alias)
    return event_id if outbox.submit(topic, kafka_key, reward, episode_id="") else None


def complete_report(fields: Mapping[str, Any], comment: str | None) -> dict[str, Any]:
    """Return a report's fields with the signal and the name that it has: words alone are the user's reply.

    Raises for a signal that nobody reads, for one with a value, which would count in its place, and for a report that
    says nothing.
    """
    signal, value = fields["signal"], fields["value"]
    if not signal and value is None and not fields["retracted"]:
        if not (comment or "").strip():
            raise ValueError("this report says nothing; give it a reward, a signal, or the user's words as its comment")
        signal = REPLY
    if signal not in get_args(Signal):
        raise ValueError(f"signal is {signal!r}; choose one of {', '.join(get_args(Signal)[1:])}")
    if signal and value is not None:
        raise ValueError(f"a report has a value or a signal, and this one has {value} and {signal!r}")
    name = fields["name"]
    return {**fields, "signal": signal, "name": NEXT_TURN if signal and name == REWARD else name}


def last_words(request: Mapping[str, Any]) -> str | None:
    """Return what the user said last in a request's messages; None if it has no such text."""
    for message in reversed(request.get("messages") or ()):
        if isinstance(message, Mapping) and message.get("role") == "user":
            return _text_of_content(message.get("content"))
    return None


def _text_of_content(content: Any) -> str | None:
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        return None
    parts = (part.get("text") for part in content if isinstance(part, Mapping))
    return "\n".join(part for part in parts if isinstance(part, str)) or None


def hosts_name(value: Any, *taken_beginnings: str) -> str:
    """Return an id or an alias that the host chose as text; raises where it begins like a name that is made here."""
    text = nonempty_text(value)
    for beginning in taken_beginnings:
        if text.startswith(beginning):
            raise ValueError(f"{text!r} begins with {beginning!r}, as names of rollbus do; begin it with another word")
    return text


def nonempty_text(value: Any) -> str:
    """Return an id or an alias as text; raises where it is None or empty, as it would name nothing."""
    if value is None:
        raise ValueError("None names no episode")
    if not (text := text_of(str(value))):
        raise ValueError("an empty text names no episode")
    return text


def encodable_texts(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event's fields with texts that UTF-8 can carry."""
    return {name: text_of(value) if isinstance(value, str) else value for name, value in fields.items()}


def reward_value(value: Any) -> float | None:
    """Return a reward as float; raises where it is not a number."""
    return None if value is None else float(value)
