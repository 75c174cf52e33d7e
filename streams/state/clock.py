"""Stream time of a partition: the highest tick seen, in one row.

Before a partition's first tick its time is unknown: a record that arrives then counts from that tick, not from 1970.
"""

import struct
from dataclasses import dataclass

from rollbus.schemas.records.control import Tick
from rollbus.streams.state.table import NO_TICK, RowCodec, Table

_ROW = struct.Struct(">qqq")
_KEY = "now"


@dataclass(frozen=True, slots=True)
class ClockRow:
    """The newest tick."""

    number: int = NO_TICK
    now_ms: int = 0
    first_ms: int = 0
    """Time of the first tick that the partition saw."""
    nonce: str = ""
    """Of the newest tick."""


def _encode_clock(row: ClockRow) -> bytes:
    return _ROW.pack(row.number, row.now_ms, row.first_ms) + row.nonce.encode()


def _decode_clock(data: bytes) -> ClockRow:
    number, now_ms, first_ms = _ROW.unpack_from(data)
    return ClockRow(number, now_ms, first_ms, data[_ROW.size :].decode())


_NEVER = ClockRow()
_CODEC: RowCodec[ClockRow] = RowCodec(1, _encode_clock, {1: _decode_clock})


class Clock:
    """Stream time, advanced by ticks alone."""

    def __init__(self) -> None:
        self.table: Table[ClockRow] = Table("clock", _CODEC)

    @property
    def now_ms(self) -> int:
        """Stream time; 0 before the first tick."""
        return self.table.rows.get(_KEY, _NEVER).now_ms

    @property
    def nonce(self) -> str:
        """Chance of the newest tick."""
        return self.table.rows.get(_KEY, _NEVER).nonce

    @property
    def last_tick(self) -> int:
        """Number of the highest tick; NO_TICK before the first."""
        return self.table.rows.get(_KEY, _NEVER).number

    def observe(self, tick: Tick) -> bool:
        """Advance to a tick; return False for an earlier one, which changes nothing.

        Its time says which is earlier, not its number: a number that leaps would make all later ticks the earlier ones.
        """
        row, now_ms = self.table.rows.get(_KEY, _NEVER), tick.stream_time_ms
        if now_ms <= row.now_ms:
            return False
        self.table.put(_KEY, ClockRow(tick.number, now_ms, row.first_ms if row.now_ms else now_ms, tick.nonce))
        return True

    def since(self, arrived_ms: int) -> int:
        """Return when waiting for something began: its arrival, or the first tick if that came later."""
        first_ms = self.table.rows.get(_KEY, _NEVER).first_ms
        return first_ms if first_ms > arrived_ms else arrived_ms
