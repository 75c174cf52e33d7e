"""Chunks to whole records: parts are kept one row each until all have come, or their grace is over.

A stage whose input may hold large records is handed each chunk as a `chunks.Chunk` and asks here whether it makes
one whole. The whole stands where its earliest part stands.
"""

import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from rollbus.schemas.chunks import Chunk
from rollbus.schemas.codec import decode
from rollbus.schemas.errors import UndecodableError
from rollbus.schemas.joining import Joiner, Whole
from rollbus.schemas.soundness import check_sound
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
        self._parts = Joiner[PartRow]()
        self._done: dict[str, int] = {}
        """When the records put together lately began to come, by digest."""

    def rebuild(self) -> None:
        """Derive which parts belong together."""
        self._parts, self._done = Joiner(), {}
        for key, row in sorted(self.table.rows.items(), key=lambda item: item[1].offset):
            digest, _, index = key.partition("/")
            if int(index) == DONE:
                self._done[digest] = row.arrived_ms
                continue
            with suppress(UndecodableError):  # parts that contradict each other expire
                self._parts.add(Chunk(bytes.fromhex(digest), int(index), row.count, row.part), row)

    def collect(self, incoming: Incoming, now_ms: int) -> Incoming | None:
        """Keep a part; return the whole record once it is there, None before that and for repeated parts.

        Raises RecordError where the parts make no record that we know.
        """
        chunk: Chunk = incoming.record
        digest, at = chunk.digest.hex(), incoming.location
        if digest in self._done or self._parts.has(chunk):
            return None
        row = PartRow(now_ms, at.partition, at.offset, chunk.count, chunk.part)
        try:
            whole = self._parts.add(chunk, row)
        except UndecodableError:
            if not self._parts.has_begun(chunk):
                self._forget_rows(digest, chunk.count)
            raise
        if whole is None:
            self.table.put(f"{digest}/{chunk.index}", row)
            return None
        return self._joined(whole, incoming, now_ms)

    def fork(self) -> "ChunkParts":
        """Return a copy to try things on; rows themselves are never changed."""
        copy = ChunkParts()
        copy.table.rows.update(self.table.rows)
        copy.rebuild()
        return copy

    def expire(self, before_ms: int) -> Iterable[str]:
        """Forget what began before a time; return the digests of records that never became whole, sorted."""
        for done in [digest for digest, began_ms in self._done.items() if began_ms <= before_ms]:
            del self._done[done]
            self.table.delete(f"{done}/{DONE}")
        late = sorted(self._parts, key=lambda item: item[0])
        late = [(digest, entry) for digest, entry in late if entry.place.arrived_ms <= before_ms]
        for digest, entry in late:
            self._parts.forget(digest)
            self._forget_rows(digest.hex(), entry.count)
        return [digest.hex() for digest, _ in late]

    def _joined(self, whole: Whole[PartRow], incoming: Incoming, now_ms: int) -> Incoming:
        digest, count = incoming.record.digest.hex(), incoming.record.count
        self._forget_rows(digest, count)
        self._done[digest] = now_ms
        row = PartRow(now_ms, incoming.location.partition, whole.place.offset, count, b"")
        self.table.put(f"{digest}/{DONE}", row)
        record: Any = decode(whole.data)
        check_sound(record)
        return Incoming(record, incoming.key, replace(incoming.location, offset=whole.place.offset), whole.data)

    def _forget_rows(self, digest: str, count: int) -> None:
        for index in range(count):
            self.table.delete(f"{digest}/{index}")
