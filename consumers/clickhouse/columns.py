"""Rows of one table → the body of one insert: a Native block, each column by clickhouse-connect's encoder of its type.

Apart from sending it, so that one insert is made ready while the server still works on the one before. The library
frames blocks, too, but loads numpy, pandas and pyarrow to ask whether it was given a table of theirs: seconds and a
hundred megabytes for a process that has none.

Token ids and log-probs lie in memory as ClickHouse reads them, so they are copied whole, however long, where the
library would take every number into Python's hands twice.
"""

import sys
from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import itemgetter
from typing import Any

from clickhouse_connect.datatypes.base import ClickHouseType
from clickhouse_connect.datatypes.container import Array
from clickhouse_connect.datatypes.registry import get_from_name, parse_name
from clickhouse_connect.driver.binding import quote_identifier
from clickhouse_connect.driver.common import write_leb128
from clickhouse_connect.driver.compression import get_compressor
from clickhouse_connect.driver.insert import InsertContext

from rollbus.consumers.clickhouse.fills import Filled
from rollbus.consumers.clickhouse.origin import Row
from rollbus.schemas.tokens import BYTES_PER_TOKEN

_PACKED = {"Array(Int32)": "i", "Array(Float32)": "f"}
"""Types whose values may be bytes, as records hold them, or arrays of this kind: both as on the wire."""

_PLAIN = (str, type(None))
"""Types of which equal values are the same."""


class PackedArray(Array, registered=False):
    """`Array(Int32)` or `Array(Float32)` that copies packed bytes and `array.array` values; others as the library."""

    def write_column_data(self, column: Sequence[Any], dest: bytearray, ctx: InsertContext) -> None:
        """Append where each value ends, then the numbers of all of them."""
        if set(map(type, column)) == {bytes}:
            ends = array("Q", (end // BYTES_PER_TOKEN for end in accumulate(map(len, column))))
        elif self._is_packed(column):
            ends = array("Q", accumulate(map(len, column)))
        else:
            super().write_column_data(column, dest, ctx)
            return
        if sys.byteorder == "big":
            ends.byteswap()
        dest += ends.tobytes()
        dest += b"".join(column)

    def _is_packed(self, column: Sequence[Any]) -> bool:
        kind = _PACKED[self.name]
        return sys.byteorder == "little" and all(type(value) is array and value.typecode == kind for value in column)


def column_type(name: str) -> ClickHouseType:
    """Return what encodes a column of the type with this name."""
    return PackedArray(parse_name(name)[2]) if name in _PACKED else get_from_name(name)


def encode(table: str, rows: Sequence[Row], types: Mapping[str, ClickHouseType], compression: str | None) -> bytes:
    """Return the statement and the data of an insert; raises DataError for what a column cannot hold."""
    columns = rows.columns() if isinstance(rows, Filled) else _columns(rows)
    context = InsertContext(table, list(columns), [types[name] for name in columns])
    names = ", ".join(quote_identifier(name) for name in columns)
    body = bytearray(f"INSERT INTO {table} ({names}) FORMAT Native\n".encode())
    write_leb128(len(columns), body)
    write_leb128(len(rows), body)
    for name, values in columns.items():
        _write_text(name, body)
        _write_text(types[name].insert_name, body)
        context.start_column(name)
        _write_values(types[name], values, body, context)
    compressor: Any = get_compressor(compression)
    return bytes(compressor.compress_block(body)) + (compressor.flush() or b"")


def _write_values(kind: ClickHouseType, values: Sequence[Any], body: bytearray, context: InsertContext) -> None:
    """Append a column. Where all values are one the library is given that one, and what it wrote is repeated."""
    first, count = values[0], len(values)
    same = type(values) is list and values[-1] == first and values.count(first) == count
    if same and kind.low_card and type(first) in _PLAIN:
        kind.write_column([first], body, context)
        key = body[-1:]  # the only one, after how many there are
        del body[-9:]
        body += count.to_bytes(8, "little") + key * count
    elif same and first is None and kind.nullable and not kind.low_card:
        nothing = bytearray()
        kind.write_column([first], nothing, context)
        body += nothing[:1] * count + nothing[1:] * count
    else:
        kind.write_column(values, body, context)


def _write_text(text: str, body: bytearray) -> None:
    data = text.encode()
    write_leb128(len(data), body)
    body += data


def _columns(rows: Sequence[Row]) -> dict[str, Sequence[Any]]:
    names = list(rows[0])
    if len(names) == 1:  # an itemgetter of one name returns no tuple
        return {names[0]: [row[names[0]] for row in rows]}
    return dict(zip(names, zip(*map(itemgetter(*names), rows), strict=True), strict=True))
