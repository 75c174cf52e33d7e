"""An event of an episode: its key among the rows, its record, and whether it is the same one again."""

import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rollbus.schemas.codec import encode
from rollbus.schemas.ids import SEPARATOR
from rollbus.schemas.records.events import Event
from rollbus.streams.stages.assembly.rows import NEVER_TAKEN, EventRow
from rollbus.streams.state.rows import kept_record

_ANY_SENDER: Mapping[str, Any] = {
    "root_episode_id": "",
    "writer_id": "",
    "occurred_at_ms": 0,
    "episode_started_at_ms": 0,
    "producer": "",
    "environment": "",
}
"""Fields that differ when another process, or the same one later, sends a report again."""


def key_within(event: Event, signer: str | None) -> str:
    """Return the key of an event within its episode: writer and sequence, or its id where the caller's key made it.

    Such an id can be known beforehand, so the signer is a part of the key: no other writer can take its place.
    """
    if event.sequence >= 0:
        return f"{event.writer_id}{SEPARATOR}{event.sequence}"
    return event.event_id if signer is None else SEPARATOR.join(("", "-1", signer, event.event_id))


def split_key(key: str) -> tuple[str, str, int]:
    """Return episode, writer and sequence of a row's key; sequence −1 where it has none."""
    episode_id, first, *rest = key.split(SEPARATOR)
    return episode_id, first if rest else "", int(rest[0]) if rest else -1


def event_of(row: EventRow) -> Any:
    """Return the row's event, decoded at most once."""
    if row.record is None:
        row.record = not_after(kept_record(row.data), row.taken_ms)
    return row.record


def not_after(event: Event, taken_ms: int | None) -> Event:
    """Return an event whose stated times are at most the broker's: none is from the future."""
    if taken_ms is None or taken_ms == NEVER_TAKEN or event.occurred_at_ms <= taken_ms:
        return event
    started_ms = min(event.episode_started_at_ms, taken_ms)
    return replace(event, occurred_at_ms=taken_ms, episode_started_at_ms=started_ms)


def checksum(data: bytes) -> int:
    """Return what distinguishes an event from another with the same key."""
    return zlib.crc32(data)


def is_sent_again(earlier: Event, event: Event) -> bool:
    """Say whether an event under the caller's key repeats a known one, from any sender and at any time."""
    return replace(earlier, **_ANY_SENDER) == replace(event, **_ANY_SENDER)


def content_checksum(event: Event) -> int:
    """Return what distinguishes an event from another under the caller's key, from any sender and at any time."""
    return checksum(encode(replace(event, **_ANY_SENDER)))
