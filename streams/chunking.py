"""Chunks to whole records: parts are kept one row each until all have come, or their grace is over.

A stage whose input may hold large records is handed each chunk as a `chunks.Chunk` and asks here whether it makes
one whole. The whole stands where its earliest part stands.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from rollbus.schemas.chunks import Chunk, join
from rollbus.schemas.codec import decode
from rollbus.streams.stage import Incoming
from rollbus.streams.state import RowCodec, Table

_HEAD = struct.Struct(">qiqH")
DONE = -1
"""Index of the row that says that a record has been put together, so that repeated parts are no-ops."""


@dataclass(frozen=True, slots=True)
class PartRow:
    """One part of a record."""

    arrived_ms: int
    partition: int
    offset: int
    count: int
    part: bytes


def _encode(row: PartRow) -> bytes:
    return _HEAD.pack(row.arrived_ms, row.partition, row.offset, row.count) + row.part


def _decode(data: bytes) -> PartRow:
    arrived_ms, partition, offset, count = _HEAD.unpack_from(data)
    return PartRow(arrived_ms, partition, offset, count, data[_HEAD.size :])


_CODEC: RowCodec[PartRow] = RowCodec(1, _encode, {1: _decode})


class ChunkParts:
    """The parts of one partition's unfinished records."""

    def __init__(self) -> None:
        self.table: Table[PartRow] = Table("chunk", _CODEC)
        self._by_digest: dict[str, dict[int, str]] = {}

    def rebuild(self) -> None:
        """Derive which parts belong together."""
        self._by_digest = {}
        for key in self.table.rows:
            self._note(key)

    def collect(self, incoming: Incoming, now_ms: int) -> Incoming | None:
        """Keep a part; return the whole record once it is there, None before that and for repeated parts.

        Raises RecordError where the parts make no record that we know.
        """
        chunk: Chunk = incoming.record
        digest = chunk.digest.hex()
        parts = self._by_digest.get(digest, {})
        if DONE in parts or chunk.index in parts:
            return None
        key = f"{digest}/{chunk.index}"
        at = incoming.location
        self.table.put(key, PartRow(now_ms, at.partition, at.offset, chunk.count, chunk.part))
        self._note(key)
        return self._whole(digest, incoming, now_ms)

    def fork(self) -> "ChunkParts":
        """Return a copy to try things on; rows themselves are never changed."""
        copy = ChunkParts()
        copy.table.rows.update(self.table.rows)
        copy.rebuild()
        return copy

    def expire(self, before_ms: int) -> Iterable[str]:
        """Forget what began before a time; return the digests of records that never became whole, sorted."""
        missing = []
        for digest, parts in sorted(self._by_digest.items()):
            if min(self.table.rows[key].arrived_ms for key in parts.values()) <= before_ms:
                if DONE not in parts:
                    missing.append(digest)
                self._forget(digest)
        return missing

    def _whole(self, digest: str, incoming: Incoming, now_ms: int) -> Incoming | None:
        parts = self._by_digest[digest]
        rows = {index: self.table.rows[key] for index, key in parts.items()}
        if len(rows) < incoming.record.count:
            return None
        earliest = min(row.offset for row in rows.values())
        self._forget(digest)
        key = f"{digest}/{DONE}"
        self.table.put(key, PartRow(now_ms, incoming.location.partition, earliest, incoming.record.count, b""))
        self._note(key)
        data = join({index: row.part for index, row in rows.items()}, incoming.record.digest)
        record: Any = decode(data)
        return Incoming(record, incoming.key, replace(incoming.location, offset=earliest), data)

    def _note(self, key: str) -> None:
        digest, _, index = key.partition("/")
        self._by_digest.setdefault(digest, {})[int(index)] = key

    def _forget(self, digest: str) -> None:
        for key in self._by_digest.pop(digest).values():
            self.table.delete(key)
