"""Records of one type, many at a time → the columns of a table, without a row for each between.

A table's columns are functions of a record, each applied to all records at once; a block of rows as dictionaries takes
twice the time and several times the memory. Pure.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, overload

from rollbus.consumers.clickhouse.origin import Origin, Row

Column = Callable[[Any], Any]
"""Of a record: its value."""


def same(*names: str) -> dict[str, Column]:
    """Return columns that hold the record's fields of these names."""
    return {name: attrgetter(name) for name in names}


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
    """Rows of one table as its records and their places; a row is made only where somebody asks for it."""

    fill: Fill
    records: list[Any] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)

    def add(self, record: Any, origin: Origin) -> None:
        """Take the next row."""
        self.records.append(record)
        self.origins.append(origin)

    def columns(self) -> dict[str, Sequence[Any]]:
        """Return every column by its name."""
        columns: dict[str, Sequence[Any]] = {
            name: list(map(value, self.records)) for name, value in self.fill.columns.items()
        }
        return columns | Origin.columns(self.origins)

    def __len__(self) -> int:
        """Return how many rows there are."""
        return len(self.records)

    def __iter__(self) -> Iterator[Row]:
        """Yield the rows, made one by one."""
        return map(self.fill.row, self.records, self.origins)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        """Return rows, made now."""
        if isinstance(index, slice):
            return list(map(self.fill.row, self.records[index], self.origins[index]))
        return self.fill.row(self.records[index], self.origins[index])
