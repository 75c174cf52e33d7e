"""The round of a record: between which two ticks of its stage's input it was made. Pure.

A stage that is ahead of others writes records of later rounds in front of a tick. `EarlyRecords` keeps those of one
partition until the tick of their round has come, so their order in time is that of the rounds, however fast each stage
was. They are rows of the changelog meanwhile, since the input's position goes on. A command of an operator or of a
finetuning run is about what lies before it, so it waits with the early records there.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from rollbus.schemas.codec import HEADER_BYTES, headers
from rollbus.schemas.errors import UndecodableError
from rollbus.schemas.records.control import RunCommand
from rollbus.schemas.topics import STAGE_INPUTS, Topic
from rollbus.streams.exactly_once.batch import RawRecord

HEADER = "round"
EARLY_KEY = b"\x1fearly"
_KEY = struct.Struct(">q")
_ROW = struct.Struct(">Bqqi")
_VERSION, _NO_KEY = 1, -1
_MOST_DIGITS = 18
"""Of a number below 2⁶³, as a row holds it."""
IN_ROUNDS = frozenset(topic.name for topic in STAGE_INPUTS.values() if not topic.is_open)
"""Topics whose records name their round; the rounds of what producers write are where it lies."""


def round_of(raw: RawRecord) -> int | None:
    """Return the round that a record names; None for one from outside, which belongs where it lies."""
    headers: Sequence[tuple[str, bytes | None]] = getattr(raw, "headers", ())
    return next((int(value) for name, value in headers if name == HEADER and _is_number(value)), None)


def _is_number(value: bytes | None) -> TypeGuard[bytes]:
    """Return whether the value of a header, which may be null, is a number that fits into a row."""
    return value is not None and value.isdigit() and len(value) <= _MOST_DIGITS


def follows_early(raw: RawRecord) -> bool:
    """Say whether a record from outside is about what lies before it, early records included."""
    return (raw.value or b"")[:HEADER_BYTES] in headers(RunCommand)


def header_of(topic: Topic | str, number: int) -> tuple[tuple[str, bytes], ...]:
    """Return the headers of a record that is made in a round; none before the first tick."""
    name = topic if isinstance(topic, str) else topic.name
    return ((HEADER, str(number).encode()),) if number >= 0 and name in IN_ROUNDS else ()


@dataclass(frozen=True, slots=True)
class EarlyRecord:
    """A record of a later round, as it was fetched."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    round: int

    def row(self) -> bytes:
        """Return it as bytes."""
        length = _NO_KEY if self.key is None else len(self.key)
        return _ROW.pack(_VERSION, self.round, self.timestamp, length) + (self.key or b"") + (self.value or b"")


class EarlyRecords:
    """Those of one partition."""

    def __init__(self) -> None:
        self._records: dict[int, EarlyRecord] = {}
        """By offset."""
        self._touched: dict[int, bool] = {}
        """Offsets of records that came or went since the last drain, and whether the changelog has their row."""

    def __len__(self) -> int:
        return len(self._records)

    def round_behind(self, raw: RawRecord) -> int | None:
        """Return the round that a record is of behind those; None for one that belongs where it lies."""
        number = round_of(raw)
        if number is None and self._records and follows_early(raw):
            return max(record.round for record in self._records.values())
        return number

    def keep(self, raw: RawRecord, number: int) -> None:
        """Keep a record until its round."""
        self._records[raw.offset] = EarlyRecord(raw.offset, raw.timestamp, raw.key, raw.value, number)
        self._touched[raw.offset] = False

    def release(self, number: int) -> list[EarlyRecord]:
        """Return, once, the records whose round has come, in the order of the partition."""
        due = sorted(offset for offset, record in self._records.items() if record.round <= number)
        for offset in due:
            if self._touched.pop(offset, True):
                self._touched[offset] = True
        return [self._records.pop(offset) for offset in due]

    def drain(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield the changelog rows of what came and went since the last call."""
        touched, self._touched = self._touched, {}
        for offset in touched:
            record = self._records.get(offset)
            yield EARLY_KEY + _KEY.pack(offset), None if record is None else record.row()

    def restore(self, key: bytes, data: bytes | None) -> None:
        """Apply one changelog row."""
        (offset,) = _KEY.unpack(key.removeprefix(EARLY_KEY))
        if data is None:
            self._records.pop(offset, None)
            return
        version, number, timestamp, length = _ROW.unpack_from(data)
        if version != _VERSION:
            raise UndecodableError(
                f"the row of an early record has version {version}, this code reads {_VERSION}; run the newer release "
                "that wrote it"
            )
        rest = data[_ROW.size :]
        name, value = (None, rest) if length == _NO_KEY else (rest[:length], rest[length:])
        self._records[offset] = EarlyRecord(offset, timestamp, name, value, number)
