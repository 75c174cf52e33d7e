"""Records to bytes and back: Avro single-object encoding, 0xC3 0x01 and the schema's fingerprint before the body.

Every version of every schema ships with the package, so new code reads old bytes as the newest version.
Checks come in order: length, marker, known fingerprint, Avro body, then the record's own rules.
"""

import json
import struct
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from fastavro.schema import fingerprint, to_parsing_canonical_form

from rollbus.schemas.avro.by_fastavro import Read, Write, resolving_reader
from rollbus.schemas.avro.types import AVRO_FOLDER, newest_version
from rollbus.schemas.errors import InvalidRecordError, RecordError, UndecodableError
from rollbus.schemas.topics import RECORDS

try:
    from rollbus.schemas.avro import native as avro
except ImportError:  # without a C compiler: slower, with the same results
    from rollbus.schemas.avro import by_fastavro as avro  # type: ignore[no-redef]

Record = TypeVar("Record")
MARKER = b"\xc3\x01"
UNREADABLE = b"rollbus: unreadable batch: "
"""What stands in the place of records that could not be read from the broker; the reason follows."""
HEADER_BYTES = 10


@dataclass(frozen=True, slots=True)
class _Writer:
    header: bytes
    write: Write


@dataclass(frozen=True, slots=True)
class _Reader:
    name: str
    read: Read


def encode(record: Any) -> bytes:
    """Return the record's bytes; raises InvalidRecordError for a field with the wrong type."""
    record_type: type = type(record)
    writer = _writer(record_type)
    try:
        return writer.write(record, writer.header)
    except (TypeError, ValueError, AttributeError, OverflowError, KeyError, struct.error) as error:
        raise InvalidRecordError(f"{type(record).__name__} cannot be written: {error}") from error


def decode(data: bytes | None) -> Any:
    """Return the record; raises UndecodableError or InvalidRecordError, never anything else."""
    reader = None if data is None else _readers().get(data[:HEADER_BYTES])
    if data is None or reader is None:
        raise UndecodableError(_unknown(data or b""))
    try:
        record, end = reader.read(data, HEADER_BYTES)
        if end < len(data):
            raise UndecodableError(f"{reader.name}: {len(data) - end} bytes left over after the record")
        return record
    except RecordError:
        raise
    except EOFError as error:
        raise UndecodableError(f"{reader.name}: the record is {error}") from error
    except Exception as error:  # broken bytes raise many kinds
        raise UndecodableError(f"{reader.name}: the body does not fit its schema: {error!r}") from error


def decode_if(data: bytes | None, *kinds: type[Record]) -> Record | None:
    """Return a record of one of these types; None for any other, and for one that cannot be read.

    For readers other than the stage that decides on the topic: that stage, or the sink, makes the dead letter.
    """
    if data is None or record_name(data) not in [kind.__name__ for kind in kinds]:
        return None
    try:
        record: Record = decode(data)
        return record
    except RecordError:
        return None


def encode_part(record: Any) -> bytes:
    """Return the bytes of a record as a part of another: without a header, and of any record type."""
    return avro.writer(type(record))(record, b"")


def record_name(data: bytes) -> str | None:
    """Return the record type that the bytes claim to be; None if the header is not ours."""
    reader = _readers().get(data[:HEADER_BYTES])
    return reader.name if reader else None


@cache
def headers(record: type) -> frozenset[bytes]:
    """Return the first bytes of a record type in each of its versions, to recognise it by a slice."""
    return frozenset(header for header, reader in _readers().items() if reader.name == record.__name__)


def _unknown(data: bytes) -> str:
    if data.startswith(UNREADABLE):
        return data.removeprefix(b"rollbus: ").decode(errors="replace")
    if len(data) < HEADER_BYTES:
        return f"{len(data)} bytes are too short for a record"
    if data[:2] != MARKER:
        return f"the record starts with 0x{data[:2].hex()} instead of 0x{MARKER.hex()}"
    return f"unknown schema fingerprint {data[2:HEADER_BYTES].hex()}; is the writer newer than this rollbus?"


@cache
def _writer(record: type) -> _Writer:
    version = newest_version(record)
    if not version:
        raise InvalidRecordError(f"{record.__name__} is not a record that travels on a topic")
    schema = _load(record.__name__, version)
    return _Writer(MARKER + _fingerprint(schema), avro.writer(record))


@cache
def _readers() -> dict[bytes, _Reader]:
    """Return the reader of each version of each record, by the header that it is written with."""
    readers = {}
    for record in RECORDS:
        newest = newest_version(record)
        for version in range(1, newest + 1):
            schema = _load(record.__name__, version)
            read = avro.reader(record) if version == newest else resolving_reader(record, schema)
            readers[MARKER + _fingerprint(schema)] = _Reader(record.__name__, read)
    return readers


def _load(name: str, version: int) -> dict[str, Any]:
    return dict(json.loads((AVRO_FOLDER / f"{name}.{version}.avsc").read_text()))


def _fingerprint(schema: dict[str, Any]) -> bytes:
    """CRC-64-AVRO of the parsing canonical form, little-endian as the single-object encoding wants it."""
    return bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))
