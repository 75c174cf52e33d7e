"""Changelog rows too large for one record: split where they are written, put together where they are restored. Pure.

An event may be many times larger than its topic takes, and the row that keeps it is no smaller. Its first part stands
under the row's own key, each other part under a key of its own, so that compaction keeps the newest of each; parts that
a smaller row has no use for are deleted with it. A transaction writes all of them or none.
"""

import struct
from collections.abc import Iterable, Iterator

from rollbus.schemas import chunks
from rollbus.schemas.chunks import Chunk

MOST_BYTES = 1_000_000
"""Of a row in one piece: a producer's batch holds it with its key, and a record in the most chunks fits with its row's
head into as many parts."""
PREFIX = b"\x1fpart"
"""Of the keys of all parts but the first, which no table's key begins with."""
_INDEX = struct.Struct(">H")


class LargeRows:
    """Which rows of one changelog partition stand there in parts."""

    def __init__(self) -> None:
        self._standing: dict[bytes, set[int]] = {}
        """Numbers of the parts after the first, by row."""
        self._waiting: dict[bytes, dict[int, Chunk]] = {}
        """Parts of rows that are being restored."""

    def split_all(self, rows: Iterable[tuple[bytes, bytes | None]]) -> list[tuple[bytes, bytes | None]]:
        """Return what is written for rows: nearly all of them as they are, at no cost."""
        written: list[tuple[bytes, bytes | None]] = []
        for row in rows:
            key, value = row
            if key not in self._standing and (value is None or len(value) <= MOST_BYTES):
                written.append(row)
            else:
                written.extend(self.split(key, value))
        return written

    def split(self, key: bytes, value: bytes | None) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield what is written for a row: the row itself where it fits, else its parts; and the end of old parts."""
        first, *others = [value] if value is None else chunks.split(value, limit=MOST_BYTES)
        yield key, first
        for index, part in enumerate(others, 1):
            yield _part_key(key, index), part
        for index in sorted(self._standing.pop(key, set())):
            if index > len(others):
                yield _part_key(key, index), None
        if others:
            self._standing[key] = set(range(1, len(others) + 1))

    def restored(self, key: bytes, value: bytes | None) -> tuple[bytes, bytes | None] | None:
        """Take what was read; return the row that it is or makes whole, None while parts are missing."""
        index = 0
        if key.startswith(PREFIX):
            (index,) = _INDEX.unpack_from(key, len(PREFIX))
            key = key[len(PREFIX) + _INDEX.size :]
        elif value is None or not chunks.is_chunk(value):
            self._waiting.pop(key, None)
            return key, value
        if value is None:
            self._waiting.get(key, {}).pop(index, None)
            self._standing.get(key, set()).discard(index)
            return None
        parts = self._waiting.setdefault(key, {})
        parts[index] = chunks.parse(value)
        if index:
            self._standing.setdefault(key, set()).add(index)
        return self._joined(key, parts)

    def unfinished(self) -> list[bytes]:
        """Return the keys of rows of which parts are missing, once all has been read."""
        return sorted(key for key, parts in self._waiting.items() if 0 in parts)

    def _joined(self, key: bytes, parts: dict[int, Chunk]) -> tuple[bytes, bytes] | None:
        first = parts.get(0)
        if first is None:
            return None
        same = {index: part.part for index, part in parts.items() if part.digest == first.digest}
        if len(same) < first.count:
            return None
        del self._waiting[key]
        return key, chunks.join(same, first.digest)


def _part_key(key: bytes, index: int) -> bytes:
    return PREFIX + _INDEX.pack(index) + key
