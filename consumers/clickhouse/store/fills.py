"""Records of one type, many at a time → the columns of a table, without building a row for each of them.

A column is a function of a record. It is applied to all records at once: rows as dictionaries would take twice the time
and several times the memory. Most columns are a field of the record, so `columns_of` derives them. Pure.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, get_type_hints, overload

from rollbus.consumers.clickhouse.store.origin import Origin, PartitionOrigin, Row, time_ms, times_ms
from rollbus.schemas.avro.types import kind_of
from rollbus.schemas.records.trajectories import Location

Column = Callable[[Any], Any]
"""Takes a record and returns its value in this column."""


class Time:
    """A column that holds a time of the record."""

    def __init__(self, name: str) -> None:
        """Take the name of the record's field."""
        self._get = attrgetter(name)

    def __call__(self, record: Any) -> int:
        """Return the time of one record."""
        return time_ms(self._get(record))

    def all(self, records: Sequence[Any]) -> Sequence[int]:
        """Return the time of every record."""
        return times_ms(list(map(self._get, records)))


def fields(*names: str) -> dict[str, Column]:
    """Return one column for each of these fields, under the same name."""
    return {name: attrgetter(name) for name in names}


def columns_of(record: type, *, leave_out: Collection[str] = ()) -> dict[str, Column]:
    """Return the columns that a record type's fields fill.

    A column has its field's name and value, with three exceptions: a time loses `_ms` from its name, a location becomes
    three columns, and a field that holds other records has no column, as these have a table of their own.
    """
    columns: dict[str, Column] = {}
    for name, hint in get_type_hints(record).items():
        if name not in leave_out:
            columns |= _columns_of_field(name, hint)
    return columns


def _columns_of_field(name: str, hint: Any) -> dict[str, Column]:
    kind, inner = kind_of(hint)
    if name.endswith("_at_ms"):
        return {name.removesuffix("_ms"): Time(name)}
    if inner is Location:
        return {f"{name}_{part}": attrgetter(f"{name}.{part}") for part in ("topic", "partition", "offset")}
    if kind == "record" or (kind == "tuple" and kind_of(inner)[0] == "record"):
        return {}
    if kind in ("map", "tuple"):
        get, convert = attrgetter(name), dict if kind == "map" else list
        return {name: lambda value: convert(get(value))}
    return fields(name)


@dataclass(frozen=True, slots=True, eq=False)
class Fill:
    """How records fill a table, one row each."""

    table: str
    columns: Mapping[str, Column]

    def row(self, record: Any, origin: Origin, **more: Any) -> Row:
        """Return the row of one record; `more` are columns that the record does not know."""
        return origin.row(**{name: value(record) for name, value in self.columns.items()}, **more)


@dataclass(slots=True)
class Filled(Sequence[Row]):
    """Rows of one table and one partition, kept as their records; a row is built when somebody reads it."""

    fill: Fill
    place: PartitionOrigin
    records: list[Any] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)

    def add(self, record: Any, offset: int, timestamp_ms: int) -> None:
        """Add a row: a record and its place in the partition."""
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
        """Yield the rows, built one by one."""
        return map(self._row, self.records, self.offsets, self.timestamps)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        """Return rows, built now."""
        if isinstance(index, slice):
            return list(map(self._row, self.records[index], self.offsets[index], self.timestamps[index]))
        return self._row(self.records[index], self.offsets[index], self.timestamps[index])

    def _row(self, record: Any, offset: int, timestamp_ms: int) -> Row:
        return self.fill.row(record, self.place.origin(offset, timestamp_ms))
