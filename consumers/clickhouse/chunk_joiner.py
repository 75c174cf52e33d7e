"""Chunks of one partition → whole records.

What is incomplete is remembered with its oldest offset: nothing from there on may be committed, or a restart would lose
the parts. A record whose parts do not all come is given up by the log's own time and size, so that a second reading
gives up at the same place.
"""

from dataclasses import dataclass, field

from rollbus.schemas.chunks import join, parse
from rollbus.schemas.errors import UndecodableError

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


@dataclass(slots=True)
class _Open:
    first: KafkaRecord
    count: int
    parts: dict[int, bytes] = field(default_factory=dict)


class ChunkJoiner:
    """The incomplete records of one partition."""

    def __init__(self) -> None:
        """Begin without any."""
        self._open: dict[bytes, _Open] = {}
        self._open_bytes = 0

    @property
    def oldest_offset(self) -> int | None:
        """Where the oldest incomplete record begins."""
        return min((entry.first.offset for entry in self._open.values()), default=None)

    def add(self, record: KafkaRecord) -> KafkaRecord | None:
        """Return the whole record, placed at its first chunk, once its last part is in; raises UndecodableError."""
        chunk = parse(record.value or b"")
        entry = self._open.setdefault(chunk.digest, _Open(record, chunk.count))
        if entry.count != chunk.count:
            raise UndecodableError(f"chunk {chunk.index} says {chunk.count} parts, the first one said {entry.count}")
        if chunk.index not in entry.parts:
            entry.parts[chunk.index] = chunk.part
            self._open_bytes += len(chunk.part)
        if len(entry.parts) < entry.count:
            return None
        self._forget(chunk.digest)
        first = entry.first
        whole = join(entry.parts, chunk.digest)
        return KafkaRecord(first.topic, first.partition, first.offset, first.timestamp_ms, first.key, whole)

    def give_up(self, now_ms: int) -> list[tuple[KafkaRecord, str]]:
        """Forget what waited too long or is too much; return the first chunk of each, and what was missing."""
        lost = []
        for digest, entry in sorted(self._open.items(), key=lambda item: item[1].first.offset):
            if now_ms - entry.first.timestamp_ms > PATIENCE_MS or self._open_bytes > MAX_OPEN_BYTES:
                self._forget(digest)
                lost.append((entry.first, f"{entry.count - len(entry.parts)} of {entry.count} chunks never came"))
        return lost

    def _forget(self, digest: bytes) -> None:
        self._open_bytes -= sum(map(len, self._open.pop(digest).parts.values()))
