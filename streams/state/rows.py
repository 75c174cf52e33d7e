"""The codecs that the stages' tables share: small rows become bytes.

A touched row is written whole, so rows stay small: a stage keeps one row per event, score or group, and no row that
grows. An index in memory holds what can be derived from rows, and is rebuilt after a restore.
"""

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rollbus.schemas.codec import decode, encode
from rollbus.schemas.errors import RecordError
from rollbus.streams.state.table import RowCodec

V = TypeVar("V")
_COMPACT = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
_INT = struct.Struct(">q")
_FLOAT = struct.Struct(">d")
_STAMP = struct.Struct(">qq")

TEXT: RowCodec[str] = RowCodec(1, str.encode, {1: bytes.decode})
FLOAT: RowCodec[float] = RowCodec(1, _FLOAT.pack, {1: lambda data: float(_FLOAT.unpack(data)[0])})
INT: RowCodec[int] = RowCodec(1, _INT.pack, {1: lambda data: int(_INT.unpack(data)[0])})


def json_codec(to_plain: Callable[[V], Any], from_plain: Callable[[Any], V]) -> RowCodec[V]:
    """Return a codec that writes a row as the compact JSON of a plain value."""

    def encode(row: V) -> bytes:
        return _COMPACT.encode(to_plain(row)).encode()

    def decode(data: bytes) -> V:
        return from_plain(json.loads(data))

    return RowCodec(1, encode, {1: decode})


def kept_record(data: bytes) -> Any:
    """Return the record that a row keeps; raises ValueError if a newer release wrote it.

    It is not a RecordError: that would make a dead letter of the record that caused the row to be read.
    """
    try:
        return decode(data)
    except RecordError as error:
        raise ValueError(
            f"the state keeps a record that this release cannot read ({error}); run the newer release that wrote it"
        ) from error


@dataclass(slots=True)
class KeptRecord(Generic[V]):
    """A record that a stage keeps: its bytes, when they came, and their order among the kept."""

    data: bytes
    """Empty until the row is written: then the record is encoded."""
    arrived_ms: int
    """Stream time; 0 before the first tick."""
    order: int = 0
    """Grows with arrival; it orders the rows that exist."""
    record: V | None = None
    """The decoded record, once it was needed."""

    def get(self) -> V:
        """Return the record, decoded at most once."""
        if self.record is None:
            self.record = kept_record(self.data)
        return self.record


def _encode_kept(row: KeptRecord[Any]) -> bytes:
    return _STAMP.pack(row.arrived_ms, row.order) + (row.data or encode(row.record))


def _decode_kept(data: bytes) -> KeptRecord[Any]:
    arrived_ms, order = _STAMP.unpack_from(data)
    return KeptRecord(data[_STAMP.size :], arrived_ms, order)


KEPT_RECORD: RowCodec[KeptRecord[Any]] = RowCodec(1, _encode_kept, {1: _decode_kept})
