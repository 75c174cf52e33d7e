"""A record's Avro body by fastavro: `codec` uses it if `native` was not built.

It writes the same bytes, reads the same records and refuses the same values, but takes twenty to forty times as long;
the tests run on both. It accepts two kinds of broken bytes that C refuses: a number of more than 64 bits, and a union's
branch that is negative or fills several bytes.
"""

from collections.abc import Callable
from functools import cache
from io import BytesIO
from typing import Any

from fastavro import parse_schema, schemaless_reader, schemaless_writer

from rollbus.schemas.avro.types import avro_schema, from_plain, to_plain

Write = Callable[[Any, bytes], bytes]
"""Returns the header and the record's body behind it; raises Python's errors if a value has the wrong type."""
Read = Callable[[bytes, int], tuple[Any, int]]
"""Returns the record whose body begins there, and where it ends; raises EOFError for a body that is cut short."""


@cache
def writer(record: type) -> Write:
    """Return the function that writes such a record."""
    schema, convert = parse_schema(avro_schema(record)), to_plain(record)

    def write(value: Any, header: bytes) -> bytes:
        out = BytesIO()
        out.write(header)
        schemaless_writer(out, schema, convert(value))
        return out.getvalue()

    return write


@cache
def reader(record: type) -> Read:
    """Return the function that reads such a record; it raises the errors of the record's own rules."""
    return resolving_reader(record, avro_schema(record))


def resolving_reader(record: type, schema: dict[str, Any]) -> Read:
    """Return the function that reads a record of any version of its schema as the newest version."""
    written_as, read_as, convert = parse_schema(schema), parse_schema(avro_schema(record)), from_plain(record)

    def read(data: bytes, at: int) -> tuple[Any, int]:
        body = BytesIO(data)
        body.seek(at)
        try:
            plain = schemaless_reader(body, written_as, read_as)
        except EOFError as error:
            raise EOFError(f"cut short: {error}") from error
        return convert(plain), body.tell()

    return read
