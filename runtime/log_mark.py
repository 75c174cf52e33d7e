"""What a position knows of its log: the cluster, the topic's id, and the last record before it. Pure.

An offset alone fits any topic of the same name: one that was deleted and made again, one on another cluster, one that
was restored from a backup. A mark is written with the position, once per transaction, and compared where reading goes
on.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from typing import Any, NamedTuple

DIGEST_BYTES, VALUE_DIGEST_BYTES = 8, 16
FORMAT = "log "
"""How the note of a mark begins."""


class LogId(NamedTuple):
    """Which log a topic is."""

    cluster: str
    topic_id: str
    """Given by the broker when the topic is made; empty where a broker before 2.8 gives none."""


@dataclass(frozen=True, slots=True)
class LogMark:
    """How a position knows its log again."""

    cluster: str
    topic_id: str
    last_offset: int = -1
    """Of the last record before the position; -1 if there was none."""
    digest: str = ""
    """Of that record."""

    @property
    def note(self) -> str:
        """The text that is committed with an offset."""
        return FORMAT + json.dumps(asdict(self), separators=(",", ":"))

    def after(self, records: Sequence[Any]) -> "LogMark":
        """Return the mark after these records of the same log, in order."""
        return replace(self, last_offset=records[-1].offset, digest=digest_of(records[-1])) if records else self


def parse_note(note: str) -> LogMark | None:
    """Return the mark in a note; None for a position that a tool or an older release committed."""
    if not note.startswith(FORMAT):
        return None
    try:
        return LogMark(**json.loads(note.removeprefix(FORMAT)))
    except (ValueError, TypeError):
        return None


def digest_of(record: Any) -> str:
    """Return a short hash of a record as the broker has it."""
    return digest_of_parts(record.timestamp, record.key, digest_of_value(record.value))


def digest_of_value(value: bytes | None) -> bytes:
    """Return the hash of a record's value."""
    return blake2b(value or b"", digest_size=VALUE_DIGEST_BYTES).digest()


def digest_of_parts(timestamp_ms: int, key: bytes | None, value_digest: bytes) -> str:
    """Return a record's short hash, where its value has been hashed already."""
    framed_key = b"-" if key is None else b"%d:" % len(key) + key
    return blake2b(b"%d:" % timestamp_ms + framed_key + value_digest, digest_size=DIGEST_BYTES).hexdigest()


def describe_difference(mark: LogMark, log: LogId, record: Any) -> str | None:
    """Say why a position is not of this log, None if it is; `record` is the one that is now at its last offset.

    `record` is None if nothing can be compared there: retention or compaction may have deleted it.
    """
    if mark.topic_id and log.topic_id and mark.topic_id != log.topic_id:
        return f"the topic was deleted and made again: its id is {log.topic_id}, and the position is of {mark.topic_id}"
    if mark.cluster != log.cluster:
        return f"it is on cluster {log.cluster}, and the position is of cluster {mark.cluster}"
    if record is not None and digest_of(record) != mark.digest:
        return f"its record {mark.last_offset} is not the one that was read; was it restored from a backup?"
    return None


@dataclass(frozen=True, slots=True)
class AcceptedLoss:
    """How reading goes on in one partition after a loss."""

    why: str
    resumes_at: int
    """The offset that is read next."""
    first: int
    last: int
    """Offsets that will never be read; an empty range where none is known."""
    mark: LogMark
    """Of the log as it is now, written with the position."""
    is_other_log: bool = False
    """Whether it is read from its beginning, since offsets of the old log mean nothing in it."""


def find_loss(
    position: int, mark: LogMark | None, log: LogId, bounds: tuple[int, int], record: Any
) -> AcceptedLoss | None:
    """Return how reading can go on where a position does not fit its log any more; None where it fits.

    `record` is the one that is now at the mark's last offset, None if there is none. A position without a mark is taken
    for one of this log.
    """
    first, end = bounds
    new_mark = LogMark(*log)
    if mark is not None and (difference := describe_difference(mark, log, record)) is not None:
        if record is not None and digest_of(record) == mark.digest:
            same = f"{difference}; its record {mark.last_offset} is the one that was read, so reading goes on behind it"
            return AcceptedLoss(same, position, position, position - 1, new_mark.after([record]))
        return AcceptedLoss(f"{difference}; it is read from its beginning", first, first, first - 1, new_mark, True)
    if position < first:
        why = f"records {position} … {first - 1} were deleted by retention before they were read"
        return AcceptedLoss(why, first, position, first - 1, mark or new_mark)
    if end < position:
        why = f"it ends at {end}, and {position} was committed: the topic was truncated; it is read from its beginning"
        return AcceptedLoss(why, first, first, first - 1, new_mark, True)
    return None
