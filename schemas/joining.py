"""Chunks of one partition, in order, to whole records: which parts of which records are there.

Records are told apart by the SHA-256 of the whole, which every chunk carries and which stands for its key too. What a
reader must know of a record in parts (where it began, when it came) is its own: the place, as of the first part.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from rollbus.schemas.chunks import Chunk, is_chunk, join, parse
from rollbus.schemas.errors import UndecodableError

P = TypeVar("P")


@dataclass(slots=True)
class Unfinished(Generic[P]):
    """A record of which parts are missing."""

    place: P
    count: int
    parts: dict[int, bytes] = field(default_factory=dict)

    @property
    def missing(self) -> int:
        """How many parts have not come."""
        return self.count - len(self.parts)


@dataclass(frozen=True, slots=True)
class Whole(Generic[P]):
    """A record whose parts are all there."""

    data: bytes
    place: P


class Joiner(Generic[P]):
    """The unfinished records of one partition; when to give one up is for its reader to say."""

    def __init__(self) -> None:
        """Begin without any."""
        self._open: dict[bytes, Unfinished[P]] = {}
        self.open_bytes = 0
        """Of all parts that wait for others."""

    def __len__(self) -> int:
        """Return how many records are unfinished."""
        return len(self._open)

    def __iter__(self) -> Iterator[tuple[bytes, Unfinished[P]]]:
        """Yield digest and parts of each unfinished record, in the order in which they began."""
        return iter(list(self._open.items()))

    def has_begun(self, chunk: Chunk) -> bool:
        """Say whether parts of the same record wait."""
        return chunk.digest in self._open

    def has(self, chunk: Chunk) -> bool:
        """Say whether this very part waits already."""
        entry = self._open.get(chunk.digest)
        return entry is not None and chunk.index in entry.parts

    def add(self, chunk: Chunk, place: P) -> Whole[P] | None:
        """Keep a part; return the record with its last one. Raises UndecodableError where parts contradict."""
        entry = self._open.setdefault(chunk.digest, Unfinished(place, chunk.count))
        if entry.count != chunk.count:
            raise UndecodableError(f"chunk {chunk.index} says {chunk.count} parts, the first one said {entry.count}")
        if chunk.index not in entry.parts:
            entry.parts[chunk.index] = chunk.part
            self.open_bytes += len(chunk.part)
        if entry.missing:
            return None
        self.forget(chunk.digest)
        return Whole(join(entry.parts, chunk.digest), entry.place)

    def whole(self, value: bytes, place: P) -> bytes | None:
        """Return a record's bytes as they are, of a chunk those that it completes; None while parts are missing.

        Raises UndecodableError for a broken chunk.
        """
        if not is_chunk(value):
            return value
        found = self.add(parse(value), place)
        return found.data if found is not None else None

    def forget(self, digest: bytes) -> None:
        """Give a record up."""
        self.open_bytes -= sum(map(len, self._open.pop(digest).parts.values()))
