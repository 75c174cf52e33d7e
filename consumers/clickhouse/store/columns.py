"""Rows of one table → the body of one insert: a Native block, each column by clickhouse-connect's encoder of its type.

Encoding is separate from sending, so that one insert is encoded while the server works on the one before. The library
frames blocks, too, but it loads numpy, pandas and pyarrow to see whether it got one of their tables: seconds and a
hundred megabytes.

Token ids and log-probs have the same bytes in memory as on the wire, so they are copied whole. The library would
convert every number twice.
"""

import sys
from array import array
from collections.abc import Mapping, Sequence
from functools import cache
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

from rollbus.consumers.clickhouse.store.fills import Filled
from rollbus.consumers.clickhouse.store.origin import Row
from rollbus.schemas.errors import RejectedError
from rollbus.schemas.records.tokens import BYTES_PER_TOKEN

_PACKED = {"Array(Int32)": "i", "Array(Float32)": "f"}
"""Types whose values may be bytes, as in records, or arrays of this kind: both are as on the wire."""

_PLAIN = (str, type(None))
"""Types whose equal values have the same bytes."""


class PackedArray(Array, registered=False):
    """`Array(Int32)` or `Array(Float32)` that copies packed bytes and `array.array` values whole."""

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


@cache
def column_type(name: str) -> ClickHouseType:
    """Return the encoder of a column, by the name of its type."""
    return PackedArray(parse_name(name)[2]) if name in _PACKED else get_from_name(name)


def encode(table: str, rows: Sequence[Row], types: Mapping[str, ClickHouseType], compression: str | None) -> bytes:
    """Return the statement and the data of an insert; raises DataError for what a column cannot hold."""
    columns = rows.columns() if isinstance(rows, Filled) else _columns(rows)
    if missing := [name for name in columns if name not in types]:
        raise RejectedError(
            f"table {table} has no column {', '.join(missing)}: it was altered by hand; stop the sink, and let "
            f"`rollbus sink rebuild {table}` make it again"
        )
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
    """Append a column. If all values are equal, the library encodes one, and its bytes are repeated."""
    first, count = values[0], len(values)
    same = type(values) is list and values[-1] == first and values.count(first) == count
    if same and kind.low_card and type(first) in _PLAIN:
        kind.write_column([first], body, context)
        key = body[-1:]  # after the number of keys comes this one
        del body[-9:]
        body += count.to_bytes(8, "little") + key * count
    elif same and first is None and kind.nullable and not kind.low_card:
        null = bytearray()
        kind.write_column([first], null, context)
        body += null[:1] * count + null[1:] * count
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
