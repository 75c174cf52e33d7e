"""Chunks to whole records: parts are kept one row each until all have come, or their grace is over.

The input of any stage may hold large records: its state asks here whether a part makes one whole. The whole stands
where its earliest part stands. One that nobody could read or take may come again, as a whole, and is read anew.

What waits is bounded in size too: beyond that the record that began first is given up, by the log alone, and the next
tick tells of it as of one whose parts never came.
"""

import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from rollbus.schemas.chunks import MAX_CHUNKS, Chunk
from rollbus.schemas.codec import decode
from rollbus.schemas.control import Tick
from rollbus.schemas.errors import RecordError, UndecodableError
from rollbus.schemas.joining import Joiner, Whole
from rollbus.schemas.soundness import check_sound
from rollbus.schemas.topics import MAX_RECORD_BYTES
from rollbus.streams.clock import Clock
from rollbus.streams.stage import Incoming
from rollbus.streams.state import RowCodec, Table

_HEAD = struct.Struct(">qiqH")
DONE = -1
"""Index of the row that says that a record has been put together, so that repeated parts are no-ops."""
_REFUSED = b"refused"
"""In the part of that row where nobody took the record, or it was given up: it has been told of, and may come again."""
_LOST = b"lost"
"""In the part of that row where the record was given up and the next tick has to tell of it."""
MAX_WAITING_BYTES = 3 * MAX_CHUNKS * MAX_RECORD_BYTES
"""Of a partition's unfinished records, 690 MB: three of the largest that can be written. A producer writes the parts of
a record one after the other and a stage in one transaction, so that few wait at once, and they are a few MB."""
MAX_WAITING_RECORDS = 4_096
"""As many that began with a full part would pass the bytes five times over: this bounds what tiny parts cost."""


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

    def __init__(self, *, max_bytes: int = MAX_WAITING_BYTES, max_records: int = MAX_WAITING_RECORDS) -> None:
        self.table: Table[PartRow] = Table("chunk", _CODEC)
        self._max_bytes, self._max_records = max_bytes, max_records
        self._parts = Joiner[PartRow]()
        self._done: dict[str, int] = {}
        """When the records put together lately were, by digest."""
        self._refused: dict[str, int] = {}
        """The same of those that came to nothing."""
        self._lost: dict[str, int] = {}
        """The same of those that were given up since the last tick."""
        self._newest: Incoming | None = None
        """What the newest chunk has made whole: the last part, with the bytes and the place of the whole."""

    def rebuild(self) -> None:
        """Derive which parts belong together."""
        self._parts, self._done, self._refused, self._lost = Joiner(), {}, {}, {}
        ended = {_REFUSED: self._refused, _LOST: self._lost}
        for key, row in sorted(self.table.rows.items(), key=lambda item: item[1].offset):
            digest, _, index = key.partition("/")
            if int(index) == DONE:
                ended.get(row.part, self._done)[digest] = row.arrived_ms
                continue
            with suppress(UndecodableError):  # parts that contradict each other expire
                self._parts.add(Chunk(bytes.fromhex(digest), int(index), row.count, row.part), row)

    def collect(self, incoming: Incoming, now_ms: int) -> Incoming | None:
        """Keep a part; return the whole record once it is there, None before that and for repeated parts.

        Raises RecordError where the parts make no record that we know.
        """
        chunk: Chunk = incoming.record
        self._newest = None
        digest, at = chunk.digest.hex(), incoming.location
        if digest in self._done or self._parts.has(chunk):
            return None
        row = PartRow(now_ms, at.partition, at.offset, chunk.count, chunk.part)
        try:
            whole = self._parts.add(chunk, row)
        except UndecodableError as error:
            if self._parts.has_begun(chunk):
                raise
            raise UndecodableError(f"{error}; {self._forget_rows(digest, chunk.count)}") from error
        if whole is None:
            self.table.put(f"{digest}/{chunk.index}", row)
            self._make_room(now_ms)
            return None
        return self._joined(whole, incoming, now_ms)

    def foreseen(self, incoming: Sequence[Incoming], clock: Clock, grace_ms: int) -> list[Incoming | None]:
        """Return what `collect` will make of the chunks of a batch, every other record as it is; changes nothing.

        The batch's own ticks count: parts that expire within it complete nothing after that.
        """
        if not any(isinstance(each.record, Chunk) for each in incoming):
            return list(incoming)
        copy = ChunkParts(max_bytes=self._max_bytes, max_records=self._max_records)
        copy.table.rows.update(self.table.rows)
        copy.rebuild()
        time = Clock()
        time.table.rows.update(clock.table.rows)
        found: list[Incoming | None] = []
        for each in incoming:
            if isinstance(each.record, Tick) and time.observe(each.record):
                copy.expire(time.now_ms - grace_ms)
            try:
                found.append(copy.collect(each, time.now_ms) if isinstance(each.record, Chunk) else each)
            except RecordError:  # the step meets it again and names it
                found.append(None)
        return found

    def refuse(self, chunk: Chunk) -> Incoming | None:
        """Hear that nobody took the record that this chunk has made whole; return it, None where it made none."""
        newest = self._newest
        if newest is None or newest.record.digest != chunk.digest:
            return None
        digest = chunk.digest.hex()
        if digest in self._done:
            self._refused[digest] = self._done.pop(digest)
            self._mark(digest, _REFUSED)
        return newest

    def leave(self, chunk: Chunk) -> None:
        """Forget the parts of a record that is not to be read at all."""
        if self._parts.has_begun(chunk):
            self._parts.forget(chunk.digest)
            self._forget_rows(chunk.digest.hex(), chunk.count)
        if self._lost.pop(chunk.digest.hex(), None) is not None:
            self.table.delete(f"{chunk.digest.hex()}/{DONE}")

    def begun(self) -> frozenset[bytes]:
        """Return the digests of the records of which parts wait."""
        return frozenset(raw for raw, _ in self._parts)

    def expire(self, before_ms: int) -> Iterable[str]:
        """Forget what began before a time; return the digests of records that never became whole, sorted.

        Among them are those given up for others since the last time. Parts that came again of a record that nobody
        took, or that was given up, are not: it has been told of.
        """
        lost = self._told()
        for raw, entry in self._parts:
            if entry.place.arrived_ms <= before_ms:
                self._parts.forget(raw)
                self._forget_rows(raw.hex(), entry.count)
                if raw.hex() not in self._refused:
                    lost.append(raw.hex())
        begun = {raw.hex() for raw in self.begun()}
        for ended in (self._done, self._refused):
            for digest in [each for each, at_ms in ended.items() if at_ms <= before_ms and each not in begun]:
                del ended[digest]
                self.table.delete(f"{digest}/{DONE}")
        return sorted(lost)

    def _make_room(self, now_ms: int) -> None:
        """Give up the records that began first until the others are within the bound."""
        while self._parts.open_bytes > self._max_bytes or len(self._parts) > self._max_records:
            raw, entry = next(iter(self._parts))
            digest = raw.hex()
            self._parts.forget(raw)
            self._forget_rows(digest, entry.count)
            if digest not in self._refused and digest not in self._lost:
                self._lost[digest] = now_ms
                place = entry.place
                self.table.put(f"{digest}/{DONE}", PartRow(now_ms, place.partition, place.offset, entry.count, _LOST))

    def _told(self) -> list[str]:
        """Return the digests given up since the last time, and remember that they were told of."""
        told = list(self._lost)
        for digest in told:
            self._refused[digest] = self._lost.pop(digest)
            self._mark(digest, _REFUSED)
        return told

    def _mark(self, digest: str, part: bytes) -> None:
        key = f"{digest}/{DONE}"
        self.table.put(key, replace(self.table.rows[key], part=part))

    def _joined(self, whole: Whole[PartRow], incoming: Incoming, now_ms: int) -> Incoming:
        digest, count = incoming.record.digest.hex(), incoming.record.count
        place = replace(incoming.location, offset=whole.place.offset)
        self._newest = Incoming(incoming.record, incoming.key, place, whole.data)
        self._forget_rows(digest, count)
        self._refused.pop(digest, None)
        self._lost.pop(digest, None)
        self._done[digest] = now_ms
        self.table.put(f"{digest}/{DONE}", PartRow(now_ms, place.partition, place.offset, count, b""))
        record: Any = decode(whole.data)
        check_sound(record)
        return Incoming(record, incoming.key, place, whole.data)

    def _forget_rows(self, digest: str, count: int) -> str:
        """Forget parts; return where they stand, in words."""
        keys = [key for index in range(count) if (key := f"{digest}/{index}") in self.table.rows]
        offsets = sorted(self.table.rows[key].offset for key in keys)
        for key in keys:
            self.table.delete(key)
        return f"the parts before this one stand at offsets {', '.join(map(str, offsets))}"
