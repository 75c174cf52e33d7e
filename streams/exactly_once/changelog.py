"""A partition's changelog → the state that it describes, and the proof that it is the state at the committed offset.

Each transaction writes the rows that it touched and one row with the input position after it. The restored state is
right exactly if that row equals the committed offset: both came from the same transaction.
"""

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from rollbus.runtime.kafka.shared_reading import SharedReading
from rollbus.runtime.log_mark import LogMark, parse_note
from rollbus.schemas.errors import DataLossError, UndecodableError
from rollbus.streams.exactly_once.claims import Committed, start_of
from rollbus.streams.exactly_once.processing import OWN_ROWS

POSITION_KEY = OWN_ROWS + b"position"
_POSITION = struct.Struct(">Bq")
REMEDY = "restore changelog and offsets from one moment, or delete both to start again from the input's beginning"
"""What to do with a changelog that cannot be continued."""
_VERSION = 1


class RestoredState(NamedTuple):
    """How much was restored, and the place in the input that it belongs to."""

    position: int | None
    """Of the input; None if the changelog names none, as an empty one."""
    rows: int
    """How many were applied."""
    mark: LogMark | None = None
    """Of the input's log; None if the position was written without one."""


def position_row(position: int, mark: LogMark | None = None) -> tuple[bytes, bytes]:
    """Return the row that names the input position after a transaction, and the log that it is of."""
    return POSITION_KEY, _POSITION.pack(_VERSION, position) + (mark.note.encode() if mark is not None else b"")


async def restore(
    reading: SharedReading, topic: str, partition: int, apply: Callable[[bytes, bytes | None], None]
) -> RestoredState:
    """Apply every row, None for a deleted one; return the input position that the changelog describes.

    Raises UndecodableError for a row that cannot be read.
    """
    position, rows, mark = None, 0, None

    def apply_row(row: Any) -> None:
        nonlocal position, rows, mark
        key, value = row.key, row.value
        if key is None:
            return
        try:
            if key == POSITION_KEY and value is not None:
                position, mark = _parse_position(value)
            else:
                apply(key, value)
                rows += 1
        except UndecodableError as error:
            raise UndecodableError(f"{topic}[{partition}]: {error}") from error
        except Exception as error:  # each codec raises its own kinds
            raise UndecodableError(
                f"{topic}[{partition}]: row {key!r} of {len(value or b'')} bytes is damaged ({error!r}); {REMEDY}"
            ) from error

    await reading.read(topic, partition, apply_row)
    return RestoredState(position, rows, mark)


def _parse_position(value: bytes) -> tuple[int, LogMark | None]:
    version, position = _POSITION.unpack_from(value)
    if version != _VERSION:
        raise UndecodableError(
            f"the row of the position has version {version}, this code reads {_VERSION}; run the newer release that "
            "wrote it"
        )
    return int(position), parse_note(value[_POSITION.size :].decode())


def require_agreed_position(
    described: int | None, committed: Committed | None, *, topic: str, partition: int, group: str, stage: str
) -> int | None:
    """Return the position to continue from, None for the beginning.

    Raises DataLossError unless changelog and offset are of one transaction.
    """
    try:
        return start_of(described, committed)
    except ValueError:
        raise DataLossError(
            f"{topic}[{partition}] describes the state at input position {described}, but group {group} has committed "
            f"{committed and committed.offset}; offsets or changelog were changed by hand or lost: restore both "
            f"from the same moment, or go on from what is left by `rollbus worker accept-loss {stage}`"
        ) from None
