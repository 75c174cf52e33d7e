"""Chunks of one partition → whole records.

What is incomplete is remembered with its oldest offset: nothing from there on may be committed, or a restart would lose
the parts. A record whose parts do not all come is given up by the log's own time and size, so that a second reading
gives up at the same place.
"""

from dataclasses import dataclass, replace

from rollbus.schemas.chunks import parse
from rollbus.schemas.joining import Joiner

PATIENCE_MS = 60_000
"""By the time stamps of later records; a producer sends the chunks of a record one after the other."""
MAX_OPEN_BYTES = 256 * 1024 * 1024
"""Of all incomplete records of a partition: a little above the largest record that can be split."""


@dataclass(frozen=True, slots=True)
class KafkaRecord:
    """One record as Kafka gave it."""

    topic: str
    """Without the namespace."""
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


class ChunkJoiner:
    """The incomplete records of one partition."""

    def __init__(self) -> None:
        """Begin without any."""
        self._parts = Joiner[KafkaRecord]()

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._parts)

    @property
    def oldest_offset(self) -> int | None:
        """Where the oldest incomplete record begins."""
        return min((entry.place.offset for _, entry in self._parts), default=None)

    def add(self, record: KafkaRecord) -> KafkaRecord | None:
        """Return the whole record, placed at its first chunk, once its last part is in; raises UndecodableError."""
        whole = self._parts.add(parse(record.value or b""), record)
        return replace(whole.place, value=whole.data) if whole is not None else None

    def give_up(self, now_ms: int) -> list[tuple[KafkaRecord, str]]:
        """Forget what waited too long or is too much; return the first chunk of each, and what was missing."""
        if len(self._parts) == 0:
            return []
        lost = []
        for digest, entry in sorted(self._parts, key=lambda item: item[1].place.offset):
            if now_ms - entry.place.timestamp_ms > PATIENCE_MS or self._parts.open_bytes > MAX_OPEN_BYTES:
                self._parts.forget(digest)
                lost.append((entry.place, f"{entry.missing} of {entry.count} chunks never came"))
        return lost
