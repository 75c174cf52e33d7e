"""Rows → JSONL or Parquet files, with their number of rows and the hash of their bytes.

Loaders take the columns and their types from the beginning of a file. So JSONL begins with the rows that are the first
to have some field, and Parquet has the columns that a later row may need.
"""

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

FileFormat = Literal["jsonl", "parquet"]
ROWS_PER_GROUP = 1_000

_CALL = pa.struct(
    {
        "id": pa.string(),
        "type": pa.string(),
        "function": pa.struct({"name": pa.string(), "arguments": pa.string()}),
    }
)
_MESSAGES = pa.list_(
    pa.struct(
        {
            "role": pa.string(),
            "content": pa.string(),
            "tool_calls": pa.list_(_CALL),
            "tool_call_id": pa.string(),
            "name": pa.string(),
            "reasoning_content": pa.string(),
        }
    )
)
_MESSAGE_COLUMNS = frozenset({"messages", "prompt", "completion", "chosen", "rejected"})
"""Rows with one of these may have `tools`, too."""
_TEXT, _LONG, _REAL = pa.string(), pa.int64(), pa.float64()
_TIME = pa.timestamp("ms", tz="UTC")
_TYPES: dict[str, pa.DataType] = {
    **dict.fromkeys(_MESSAGE_COLUMNS, _MESSAGES),
    **dict.fromkeys(("turns", "tokens", "sampled_tokens", "min_policy_version", "policy_version", "step"), _LONG),
    **dict.fromkeys(("reward", "chosen_score", "rejected_score"), _REAL),
    **dict.fromkeys(("started_at", "ended_at"), _TIME),
    "labels": pa.list_(pa.struct({"name": _TEXT, "value": _TEXT})),
    "components": pa.list_(pa.struct({"name": _TEXT, "value": _REAL})),
    "trainable": pa.bool_(),
    "conversations": pa.list_(_MESSAGES),
    "histories": pa.list_(
        pa.struct(
            {
                "token_ids": pa.list_(pa.int32()),
                "logprobs": pa.list_(pa.float32()),
                "span_starts": pa.list_(_LONG),
                "span_ends": pa.list_(_LONG),
                "span_policy_versions": pa.list_(_LONG),
            }
        )
    ),
}
"""By column; every other column is text."""
_MAPS = {"labels", "components"}
"""In Parquet these are lists of names and values: the library that trainers load it with has no maps."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """One file of an export."""

    path: str
    """Inside the export's folder."""
    rows: int
    bytes: int
    sha256: str


def path_of(folder: Path, name: str, file_format: FileFormat) -> Path:
    """Return where a file of an export is."""
    return folder / f"{name}.{file_format}"


def write_rows(folder: Path, name: str, rows: Iterable[dict[str, Any]], file_format: FileFormat) -> WrittenFile:
    """Write one file; a Parquet file without rows has no columns."""
    path = path_of(folder, name, file_format)
    path.parent.mkdir(parents=True, exist_ok=True)
    write = _write_parquet if file_format == "parquet" else _write_jsonl
    count = write(path, rows)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return WrittenFile(str(path.relative_to(folder)), count, path.stat().st_size, digest)


def _write_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> int:
    count = 0
    known: set[tuple[str, ...]] = set()
    rest = path.with_name(path.name + ".rest")
    try:
        with path.open("wb") as first, rest.open("w+b") as others:
            for row in rows:
                line = json.dumps(row, ensure_ascii=False, default=_iso_time).encode() + b"\n"
                fields = set(_fields(row))
                (others if fields <= known else first).write(line)
                known |= fields
                count += 1
            others.seek(0)
            shutil.copyfileobj(others, first)
    finally:
        rest.unlink(missing_ok=True)
    return count


def _fields(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the fields that have a value, at any depth."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _fields(each, (*path, name))
    elif isinstance(value, list):
        if not value or not isinstance(value[0], dict | list):
            yield from [path] if value else []
        else:
            for each in value:
                yield from _fields(each, path)
    elif value is not None:
        yield path


def _write_parquet(path: Path, rows: Iterable[dict[str, Any]]) -> int:
    count = 0
    waiting: list[dict[str, Any]] = []
    writer: pq.ParquetWriter | None = None
    for row in rows:
        waiting.append(row)
        count += 1
        if len(waiting) >= ROWS_PER_GROUP:
            writer = _write_group(path, writer, waiting)
            waiting = []
    if waiting or writer is None:
        writer = _write_group(path, writer, waiting)
    writer.close()
    return count


def _write_group(path: Path, writer: pq.ParquetWriter | None, rows: list[dict[str, Any]]) -> pq.ParquetWriter:
    if writer is None:
        names = dict.fromkeys(name for row in rows for name in row)
        if not _MESSAGE_COLUMNS.isdisjoint(names):
            names["tools"] = None
        writer = pq.ParquetWriter(
            path, pa.schema({name: _TYPES.get(name, _TEXT) for name in names}), compression="zstd"
        )
    writer.write_table(pa.Table.from_pylist([_maps_as_lists(row) for row in rows], schema=writer.schema))
    return writer


def _maps_as_lists(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: [{"name": key, "value": item} for key, item in value.items()] if name in _MAPS else value
        for name, value in row.items()
    }


def _iso_time(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} has no JSON form")
