"""Chunks of one partition → whole records.

What is incomplete is remembered with its oldest offset: nothing from there on may be committed, or a restart would lose
the parts. A record whose parts do not all come is given up by the log's own time and size, so that a second reading
gives up at the same place. Its time begins with the first that is heard of after it: its producer's clock may be wrong.
"""

from dataclasses import dataclass, replace

from rollbus.schemas.chunks import parse
from rollbus.schemas.joining import Joiner

PATIENCE_MS = 60_000
"""A producer sends the chunks of a record one after the other."""
MAX_OPEN_BYTES = 256 * 1024 * 1024
"""Of all incomplete records of a partition: a little above the largest record that can be split."""
MAX_BEHIND_BYTES = 64 * 1024 * 1024
"""Of whole records that came after an incomplete one and are held back by it: the log may tell no time."""


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
        self._since_ms: dict[bytes, int] = {}
        """The first time that was heard after each began."""
        self._behind_bytes: dict[bytes, int] = {}

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._parts)

    @property
    def oldest_offset(self) -> int | None:
        """Where the oldest incomplete record begins."""
        return min((entry.place.offset for _, entry in self._parts), default=None)

    def add(self, record: KafkaRecord) -> KafkaRecord | None:
        """Return the whole record, placed at its first chunk, once its last part is in; raises UndecodableError."""
        chunk = parse(record.value or b"")
        try:
            whole = self._parts.add(chunk, record)
        finally:
            if not self._parts.has_begun(chunk):
                self._forget_times(chunk.digest)
        return replace(whole.place, value=whole.data) if whole is not None else None

    def passed(self, size_bytes: int) -> None:
        """Take notice of a whole record behind the incomplete ones."""
        for digest, _ in self._parts:
            self._behind_bytes[digest] = self._behind_bytes.get(digest, 0) + size_bytes

    def give_up(self, now_ms: int | None) -> list[tuple[KafkaRecord, str]]:
        """Forget what waited too long or is too much; return the first chunk of each, and what was missing.

        None where the log does not tell the time.
        """
        lost = []
        for digest, entry in sorted(self._parts, key=lambda item: item[1].place.offset):
            if self._is_late(digest, now_ms) or self._parts.open_bytes > MAX_OPEN_BYTES:
                self._parts.forget(digest)
                self._forget_times(digest)
                lost.append((entry.place, f"{entry.missing} of {entry.count} chunks never came"))
        return lost

    def _is_late(self, digest: bytes, now_ms: int | None) -> bool:
        if now_ms is not None and now_ms - self._since_ms.setdefault(digest, now_ms) > PATIENCE_MS:
            return True
        return self._behind_bytes.get(digest, 0) > MAX_BEHIND_BYTES

    def _forget_times(self, digest: bytes) -> None:
        self._since_ms.pop(digest, None)
        self._behind_bytes.pop(digest, None)
