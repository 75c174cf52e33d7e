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

DIGEST_BYTES = 8
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
    parts = (b"%d" % record.timestamp, record.key, record.value)
    framed = (b"-" if part is None else b"%d:" % len(part) + part for part in parts)
    return blake2b(b"".join(framed), digest_size=DIGEST_BYTES).hexdigest()


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
