"""The partitions of a recorded topic to one order: by (tick, partition, offset), however much is read at once.

A round is a tick and everything up to the next one. Every partition of a topic holds the same ticks, so a record's
round is the last tick before it in its own partition: its stream time.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rollbus.schemas.codec import HEADER_BYTES, decode_if, headers
from rollbus.schemas.records.control import Tick
from rollbus.schemas.signing import OWNER, SignerOf
from rollbus.streams.exactly_once.batch import RawRecord


class Source(Protocol):
    """One partition of the range."""

    partition: int

    async def read(self) -> Sequence[RawRecord]:
        """Return the next records, as many as come; none at the end of the range."""
        ...


@dataclass(frozen=True, slots=True)
class Piece:
    """Records of one partition between two ticks, or a part of them."""

    partition: int
    records: Sequence[RawRecord]


@dataclass(frozen=True, slots=True)
class Round:
    """A tick, and the partitions that hold it."""

    tick: Tick
    data: bytes
    at: tuple[tuple[int, RawRecord], ...]


async def merge_sources(sources: Sequence[Source], signer_of: SignerOf | None = None) -> AsyncIterator[Piece | Round]:
    """Yield everything in one order: what comes before the first ticks, then round after round.

    With `signer_of`, a tick that the owner has not signed is a record as any other.
    """
    cursors = [_Cursor(source, signer_of) for source in sources]
    for cursor in cursors:
        async for piece in cursor.until_tick():
            yield piece
    while waiting := [cursor for cursor in cursors if cursor.tick is not None]:
        number = min(cursor.number for cursor in waiting)
        now = [cursor for cursor in waiting if cursor.number == number]
        first = now[0]
        assert first.tick is not None
        assert first.raw is not None
        at = tuple((cursor.source.partition, cursor.raw) for cursor in now if cursor.raw is not None)
        yield Round(first.tick, first.raw.value or b"", at)
        for cursor in now:
            async for piece in cursor.until_tick():
                yield piece


@dataclass(slots=True)
class _Cursor:
    """Stands before a tick, or at the end."""

    source: Source
    signer_of: SignerOf | None
    tick: Tick | None = None
    raw: RawRecord | None = None
    number: int = -1
    _rest: Sequence[RawRecord] = field(default_factory=list)

    async def until_tick(self) -> AsyncIterator[Piece]:
        """Yield what comes before the next tick, and stop at it."""
        self.tick = self.raw = None
        ticks = headers(Tick)
        while True:
            records = self._rest or await self.source.read()
            if not records:
                return
            begins = (index for index, raw in enumerate(records) if (raw.value or b"")[:HEADER_BYTES] in ticks)
            end = next((index for index in begins if self._is_tick(records[index])), len(records))
            self._rest = records[end + 1 :]
            if end:
                yield Piece(self.source.partition, records[:end])
            if self.tick is not None:
                return

    def _is_tick(self, raw: RawRecord) -> bool:
        if self.signer_of is not None and self.signer_of(raw) != OWNER:
            return False
        if (tick := decode_if(raw.value, Tick)) is None:
            return False
        self.tick, self.raw, self.number = tick, raw, tick.number
        return True
