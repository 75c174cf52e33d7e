"""The rows that a stage remembers for one partition, and which of them a batch has touched.

State is plain dictionaries, changed in place by the pure step. After a batch the runner drains the touched
rows into the changelog, in the same transaction as the outputs; if that fails, it throws the state away and
restores it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rollbus.schemas.errors import UndecodableError

V = TypeVar("V")
NO_TICK = -1
"""The number before the first tick."""
_SEPARATOR = b"\x1f"


@dataclass(frozen=True, slots=True)
class RowCodec(Generic[V]):
    """How a row becomes bytes; each changelog row starts with the version that wrote it."""

    version: int
    encode: Callable[[V], bytes]
    readers: dict[int, Callable[[bytes], V]]
    """By version: the newest, and every older one that a changelog may still have."""


class Table(Generic[V]):
    """Rows by key; remembers which were put or deleted since the last drain.

    A row that was put and deleted between two drains was never written, so nothing is written about it.
    """

    def __init__(self, name: str, codec: RowCodec[V]) -> None:
        self.name = name
        self.rows: dict[str, V] = {}
        self.get: Callable[[str], V | None] = self.rows.get
        """Returns a row or None; it is the dictionary's own method, since every record calls it."""
        self._codec = codec
        self._touched: dict[str, bool] = {}
        """Keys put or deleted, and whether the changelog has their row."""

    def put(self, key: str, value: V) -> None:
        """Set a row; also to be called after changing one in place."""
        if key not in self._touched:
            self._touched[key] = key in self.rows
        self.rows[key] = value

    def delete(self, key: str) -> None:
        """Remove a row, if it exists."""
        if self.rows.pop(key, None) is not None and not self._touched.setdefault(key, True):
            del self._touched[key]

    def drain(self) -> Iterator[tuple[str, bytes | None]]:
        """Yield each touched key with its bytes, None where deleted, and forget that it was touched."""
        touched, self._touched = self._touched, {}
        version = bytes([self._codec.version])
        for key in touched:
            row = self.rows.get(key)
            yield key, None if row is None else version + self._codec.encode(row)

    def forget_touched(self) -> None:
        """Drop the rows touched since the last drain: without a changelog they need not be encoded."""
        self._touched.clear()

    def restore(self, key: str, data: bytes | None) -> None:
        """Set a row from its changelog bytes; raises UndecodableError for a version newer than this code."""
        if data is None:
            self.rows.pop(key, None)
            return
        read = self._codec.readers.get(data[0])
        if read is None:
            raise UndecodableError(
                f"changelog row {self.name}/{key} has version {data[0]}, this code reads "
                f"{sorted(self._codec.readers)}; run the newer release that wrote it"
            )
        self.rows[key] = read(data[1:])


class PartitionState:
    """All tables of one stage for one partition."""

    def __init__(self, *tables: Table[Any]) -> None:
        self._tables = {table.name: table for table in tables}

    def drain(self) -> list[tuple[bytes, bytes | None]]:
        """Return the changelog rows (key, value) of everything touched since the last call."""
        return [
            (name.encode() + _SEPARATOR + key.encode(), value)
            for name, table in self._tables.items()
            for key, value in table.drain()
        ]

    def forget_touched(self) -> None:
        """Drop what was touched since the last drain."""
        for table in self._tables.values():
            table.forget_touched()

    @property
    def forgotten(self) -> int:
        """How many keys the stage forgot to make room for newer ones."""
        return 0

    @property
    def now_ms(self) -> int:
        """Stream time; 0 for a stage that does not follow it."""
        return 0

    @property
    def last_tick(self) -> int:
        """Number of the last tick; NO_TICK before the first, and for a stage that does not follow time."""
        return NO_TICK

    def note_unwritten(self, record: Any) -> None:
        """Take note that an output was too large to be written: no answer to it will come."""

    def size(self) -> int:
        """Return how many rows there are."""
        return sum(len(table.rows) for table in self._tables.values())

    def restore(self, key: bytes, value: bytes | None) -> None:
        """Apply one changelog row; raises UndecodableError for a table that this code does not know."""
        name, _, row_key = key.partition(_SEPARATOR)
        table = self._tables.get(name.decode())
        if table is None:
            raise UndecodableError(
                f"changelog row of unknown table {name!r}; known: {sorted(self._tables)}; run the newer release that "
                "wrote it"
            )
        table.restore(row_key.decode(), value)
