"""Records of one partition ⇄ the bytes of a Parquet file.

Parquet, since ClickHouse, DuckDB, pandas and Spark read it where it is, in object storage too, and only the columns
that they ask for. Values stay the bytes that Kafka had, in Avro's single-object encoding.
"""

import hashlib
import io
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from rollbus.schemas.errors import DataLossError

_HEADER = pa.struct({"name": pa.string(), "value": pa.binary()})
_SCHEMA = pa.schema(
    {
        "offset": pa.int64(),
        "timestamp_ms": pa.int64(),
        "timestamp_type": pa.int8(),
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": pa.list_(_HEADER),
    }
)


class ArchivedRecord(NamedTuple):
    """A record as Kafka gave it."""

    offset: int
    timestamp: int
    """Milliseconds, as in Kafka."""
    timestamp_type: int
    """0: of the producer's clock; 1: of the broker's."""
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def size(self) -> int:
        """Bytes of key and value."""
        return len(self.key or b"") + len(self.value or b"")


def to_archived_record(raw: Any) -> ArchivedRecord:
    """Return what a consumer has fetched."""
    return ArchivedRecord(raw.offset, raw.timestamp, raw.timestamp_type, raw.key, raw.value, tuple(raw.headers))


def to_parquet(records: Sequence[ArchivedRecord]) -> bytes:
    """Return the file of these records."""
    columns: list[Sequence[Any]] = list(zip(*records, strict=True))
    columns[-1] = [[{"name": name, "value": value} for name, value in headers] for headers in columns[-1]]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
    file = io.BytesIO()
    pq.write_table(
        pa.Table.from_arrays(arrays, schema=_SCHEMA), file, compression="zstd", use_dictionary=["key", "timestamp_type"]
    )
    return file.getvalue()


def from_parquet(data: bytes, path: str) -> list[ArchivedRecord]:
    """Return the records of a file; raises DataLossError for one that cannot be read."""
    try:
        # In this thread alone: one of Arrow's that lets go of our bytes while Python ends would abort the process.
        file = pq.ParquetFile(pa.BufferReader(data), pre_buffer=False)
        table = file.read(columns=_SCHEMA.names, use_threads=False).cast(_SCHEMA)
        columns: list[list[Any]] = [column.to_pylist() for column in table.columns]
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataLossError(f"{path} cannot be read as Parquet: {error}; take it from a copy") from error
    columns[-1] = [tuple((header["name"], header["value"]) for header in headers) for headers in columns[-1]]
    return [ArchivedRecord(*row) for row in zip(*columns, strict=True)]


class RecordDigest:
    """One number for a sequence of records: offsets, timestamps, keys, values and headers, byte for byte."""

    def __init__(self) -> None:
        """Begin with no record."""
        self._hash = hashlib.sha256()
        self.records = 0

    def add(self, record: Any) -> None:
        """Add an archived record, or one that a consumer has fetched."""
        parts: list[bytes | None] = [record.key, record.value]
        for name, value in record.headers:
            parts += [name.encode(), value]
        self._hash.update(b"%d %d %d" % (record.offset, record.timestamp, len(parts)))
        for part in parts:
            self._hash.update(b"-" if part is None else b"%d:" % len(part) + part)
        self.records += 1

    def hexdigest(self) -> str:
        """Return the digest as text."""
        return self._hash.hexdigest()


def digest_of(records: Iterable[Any]) -> str:
    """Return the digest of these records."""
    digest = RecordDigest()
    for record in records:
        digest.add(record)
    return digest.hexdigest()
