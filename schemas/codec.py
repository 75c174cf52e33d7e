"""Records to bytes and back: Avro single-object encoding, 0xC3 0x01 and the schema's fingerprint before the body.

Every version of every schema ships with the package, so old bytes are read by new code: resolved to the newest version.
Checks come in order: length, marker, known fingerprint, Avro body, then the record's own rules.
"""

import json
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from typing import Any

from fastavro import parse_schema, schemaless_reader, schemaless_writer
from fastavro.schema import fingerprint, to_parsing_canonical_form

from rollbus.schemas.avro_types import AVRO_FOLDER, Convert, from_plain, newest_version, to_plain
from rollbus.schemas.errors import InvalidRecordError, RecordError, UndecodableError
from rollbus.schemas.registry import RECORDS

MARKER = b"\xc3\x01"
HEADER_BYTES = 10


@dataclass(frozen=True, slots=True)
class _Writer:
    header: bytes
    schema: Any
    convert: Convert


@dataclass(frozen=True, slots=True)
class _Reader:
    name: str
    written_as: Any
    read_as: Any
    """None where the bytes were written with the newest version."""
    convert: Convert


def encode(record: Any) -> bytes:
    """Return the record's bytes; raises InvalidRecordError where a field has the wrong type."""
    record_type: type = type(record)
    writer = _writer(record_type)
    out = BytesIO()
    out.write(writer.header)
    try:
        schemaless_writer(out, writer.schema, writer.convert(record))
    except (TypeError, ValueError, AttributeError, OverflowError, KeyError) as error:
        raise InvalidRecordError(f"{type(record).__name__} cannot be written: {error}") from error
    return out.getvalue()


def decode(data: bytes | None) -> Any:
    """Return the record; raises UndecodableError or InvalidRecordError, never anything else."""
    if data is None or len(data) < HEADER_BYTES:
        raise UndecodableError(f"{0 if data is None else len(data)} bytes are too short for a record")
    if data[:2] != MARKER:
        raise UndecodableError(f"the record starts with 0x{data[:2].hex()} instead of 0x{MARKER.hex()}")
    reader = _readers().get(data[2:HEADER_BYTES])
    if reader is None:
        raise UndecodableError(f"unknown schema fingerprint {data[2:HEADER_BYTES].hex()}; is the writer newer than we?")
    body = BytesIO(data)
    body.seek(HEADER_BYTES)
    try:
        plain = schemaless_reader(body, reader.written_as, reader.read_as)
        if body.tell() != len(data):
            raise UndecodableError(f"{reader.name}: {len(data) - body.tell()} bytes left over after the record")
        return reader.convert(plain)
    except RecordError:
        raise
    except Exception as error:  # fastavro raises many kinds on broken bytes
        raise UndecodableError(f"{reader.name}: the body does not fit its schema: {error!r}") from error


def record_name(data: bytes) -> str | None:
    """Return the record type that the bytes claim to be; None where the header is not ours."""
    reader = _readers().get(data[2:HEADER_BYTES]) if data[:2] == MARKER else None
    return reader.name if reader else None


@cache
def _writer(record: type) -> _Writer:
    version = newest_version(record)
    if not version:
        raise InvalidRecordError(f"{record.__name__} is not a record that travels on a topic")
    schema = _load(record.__name__, version)
    return _Writer(MARKER + _fingerprint(schema), parse_schema(schema), to_plain(record))


@cache
def _readers() -> dict[bytes, _Reader]:
    readers = {}
    for record in RECORDS:
        newest = newest_version(record)
        for version in range(1, newest + 1):
            schema = _load(record.__name__, version)
            read_as = None if version == newest else parse_schema(_load(record.__name__, newest))
            readers[_fingerprint(schema)] = _Reader(record.__name__, parse_schema(schema), read_as, from_plain(record))
    return readers


def _load(name: str, version: int) -> dict[str, Any]:
    return dict(json.loads((AVRO_FOLDER / f"{name}.{version}.avsc").read_text()))


def _fingerprint(schema: dict[str, Any]) -> bytes:
    """CRC-64-AVRO of the parsing canonical form, little-endian as the single-object encoding wants it."""
    return bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))
