"""Native blocks as the engine writes them → blocks as a client of a given protocol revision reads them.

A client that names its revision, as the Go client does, expects before each block what the server says of it, and
before the data of each column whether it is serialized in a way of its own. The engine writes neither; where the data
of a column end follows from its type.
"""

import struct

from rollbus.local.clickhouse_errors import NOT_IMPLEMENTED, refusal

WITH_SERIALIZATION = 54454
"""First revision that says how a column is serialized (src/Core/ProtocolDefines.h)."""
BLOCK_INFO = b"\x01\x00\x02\xff\xff\xff\xff\x00"
"""Field 1, no overflow; field 2, no bucket; end."""
PLAIN = b"\x00"
"""Not serialized in a way of its own."""
_WIDTHS = {
    "Bool": 1, "Int8": 1, "UInt8": 1, "Enum8": 1, "Nothing": 1, "Int16": 2, "UInt16": 2, "Enum16": 2, "Date": 2,
    "BFloat16": 2, "Int32": 4, "UInt32": 4, "Float32": 4, "Date32": 4, "DateTime": 4, "Time": 4, "IPv4": 4,
    "Decimal32": 4, "Int64": 8, "UInt64": 8, "Float64": 8, "DateTime64": 8, "Time64": 8, "Decimal64": 8, "UUID": 16,
    "IPv6": 16, "Int128": 16, "UInt128": 16, "Decimal128": 16, "Int256": 32, "UInt256": 32, "Decimal256": 32,
}  # fmt: skip
"""Bytes of one value."""
_INDEX_WIDTHS = (1, 2, 4, 8)
"""Of LowCardinality, by the lowest byte of its flags."""


def for_revision(data: bytes, revision: int) -> bytes:
    """Rewrite whole blocks; raises ClickHouseError for a type whose end is not known here."""
    if revision < WITH_SERIALIZATION:
        return data
    parts: list[bytes] = []
    start = 0
    while start < len(data):
        parts.append(BLOCK_INFO)
        columns, position = _number(data, start)
        rows, position = _number(data, position)
        for _ in range(columns):
            _, position = _text(data, position)
            name, position = _text(data, position)
            parts += (data[start:position], PLAIN)
            start = position
            if rows:
                position = _skip(name, data, _skip_prefix(name, data, position), rows)
        parts.append(data[start:position])
        start = position
    return b"".join(parts)


def _skip(name: str, data: bytes, position: int, rows: int) -> int:
    """Where the data of a column end."""
    base, arguments = _split(name)
    if base in _WIDTHS:
        return position + rows * _WIDTHS[base]
    if base == "String":
        for _ in range(rows):
            size, position = _number(data, position)
            position += size
        return position
    if base == "FixedString":
        return position + rows * int(arguments[0])
    if base == "Decimal":
        digits = int(arguments[0])
        return position + rows * (4 if digits <= 9 else 8 if digits <= 18 else 16 if digits <= 38 else 32)
    if base == "Nullable":
        return _skip(arguments[0], data, position + rows, rows)
    if base in {"Array", "Map"}:
        inner = arguments[0] if base == "Array" else f"Tuple({', '.join(arguments)})"
        total = _uint64(data, position + 8 * (rows - 1)) if rows else 0
        return _skip(inner, data, position + 8 * rows, total)
    if base == "Tuple":
        for argument in arguments:
            position = _skip(_without_label(argument), data, position, rows)
        return position
    if base == "LowCardinality":
        return _skip_low_cardinality(arguments[0], data, position, rows)
    if base == "SimpleAggregateFunction":
        return _skip(arguments[-1], data, position, rows)
    raise refusal(
        NOT_IMPLEMENTED,
        f"Type {name} is not served to clients that name their protocol revision; cast it, for example to String",
    )


def _skip_prefix(name: str, data: bytes, position: int) -> int:
    """What stands once before the data: the version of each LowCardinality in the type."""
    return position + 8 * name.count("LowCardinality(")


def _skip_low_cardinality(inner: str, data: bytes, position: int, rows: int) -> int:
    if not rows:
        return position
    width = _INDEX_WIDTHS[_uint64(data, position) & 0xFF]
    base, arguments = _split(inner)
    keys = _uint64(data, position + 8)
    position = _skip(arguments[0] if base == "Nullable" else inner, data, position + 16, keys)
    return position + 8 + width * _uint64(data, position)


def _split(name: str) -> tuple[str, list[str]]:
    """`Map(String, Array(UInt8))` → Map and its two arguments."""
    base, opened, rest = name.partition("(")
    if not opened:
        return base, []
    arguments, depth, quoted = [""], 0, False
    for letter in rest[:-1]:
        quoted ^= letter == "'"
        depth += 0 if quoted else (letter == "(") - (letter == ")")
        if letter == "," and depth == 0 and not quoted:
            arguments.append("")
        else:
            arguments[-1] += letter
    return base, [argument.strip() for argument in arguments]


def _without_label(argument: str) -> str:
    """`a UInt8` → UInt8, as elements of a tuple may have names."""
    label, blank, rest = argument.partition(" ")
    return rest if blank and "(" not in label else argument


def _number(data: bytes, position: int) -> tuple[int, int]:
    """A number of variable length, seven bits a byte, and where it ends."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _text(data: bytes, position: int) -> tuple[str, int]:
    size, position = _number(data, position)
    return data[position : position + size].decode(), position + size


def _uint64(data: bytes, position: int) -> int:
    value: int = struct.unpack_from("<Q", data, position)[0]
    return value
