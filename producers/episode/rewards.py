"""Write a reward that is not part of an episode's own sequence: under the caller's key, by alias, or after the end.

Its id comes from target, name and key, so the same report sent twice, from any process, is one event.
"""

from collections.abc import Mapping
from typing import Any

from rollbus.producers.episode.outbox import Outbox, root_of
from rollbus.producers.turns.answer import text_of
from rollbus.schemas import ids
from rollbus.schemas.records.events import RewardReported
from rollbus.schemas.topics import ALIASES, EPISODE_EVENTS

KEYED = -1
"""The sequence of an event whose id comes from the caller's key."""


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
    topic, kafka_key = (EPISODE_EVENTS, root_of(episode_id)) if alias is None else (ALIASES, alias)
    return event_id if outbox.submit(topic, kafka_key, reward, episode_id="") else None


def nonempty_text(value: Any) -> str:
    """Return an id or an alias as text; raises where it is empty, as it would name nothing."""
    if not (text := text_of(str(value))):
        raise ValueError("an empty text names no episode")
    return text


def encodable_texts(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event's fields with texts that UTF-8 can carry."""
    return {name: text_of(value) if isinstance(value, str) else value for name, value in fields.items()}


def reward_value(value: Any) -> float | None:
    """Return a reward as float; raises where it is not a number."""
    return None if value is None else float(value)
