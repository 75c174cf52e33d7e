"""Records of one type, many at a time → the columns of a table, without a row for each between.

A table's columns are functions of a record, each applied to all records at once; a block of rows as dictionaries takes
twice the time and several times the memory. Pure.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, overload

from rollbus.consumers.clickhouse.origin import Origin, Place, Row, time_ms, times_ms

Column = Callable[[Any], Any]
"""Of a record: its value."""


def same(*names: str) -> dict[str, Column]:
    """Return columns that hold the record's fields of these names."""
    return {name: attrgetter(name) for name in names}


class Time:
    """A column that holds a time of the record."""

    def __init__(self, name: str) -> None:
        """Take the name of the record's field."""
        self._of = attrgetter(name)

    def __call__(self, record: Any) -> int:
        """Return it of one record."""
        return time_ms(self._of(record))

    def all(self, records: Sequence[Any]) -> Sequence[int]:
        """Return it of every record."""
        return times_ms(list(map(self._of, records)))


@dataclass(frozen=True, slots=True, eq=False)
class Fill:
    """How records fill a table, one row each."""

    table: str
    columns: Mapping[str, Column]

    def row(self, record: Any, origin: Origin) -> Row:
        """Return the row of one record."""
        return origin.row(**{name: value(record) for name, value in self.columns.items()})


@dataclass(slots=True)
class Filled(Sequence[Row]):
    """Rows of one table and one partition as their records; a row is made only where somebody asks for it."""

    fill: Fill
    place: Place
    records: list[Any] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)

    def add(self, record: Any, offset: int, timestamp_ms: int) -> None:
        """Take the next row: a record and where in the partition it is."""
        self.records.append(record)
        self.offsets.append(offset)
        self.timestamps.append(timestamp_ms)

    def columns(self) -> dict[str, Sequence[Any]]:
        """Return every column by its name."""
        columns: dict[str, Sequence[Any]] = {
            name: value.all(self.records) if type(value) is Time else list(map(value, self.records))
            for name, value in self.fill.columns.items()
        }
        return columns | self.place.columns(self.offsets, self.timestamps)

    def __len__(self) -> int:
        """Return how many rows there are."""
        return len(self.records)

    def __iter__(self) -> Iterator[Row]:
        """Yield the rows, made one by one."""
        return map(self._row, self.records, self.offsets, self.timestamps)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        """Return rows, made now."""
        if isinstance(index, slice):
            return list(map(self._row, self.records[index], self.offsets[index], self.timestamps[index]))
        return self._row(self.records[index], self.offsets[index], self.timestamps[index])

    def _row(self, record: Any, offset: int, timestamp_ms: int) -> Row:
        return self.fill.row(record, self.place.origin(offset, timestamp_ms))
