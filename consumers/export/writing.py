"""Rows → Parquet or JSONL files, with their number of rows and the hash of their bytes.

Messages and tool schemas differ from row to row. So in Parquet they are columns of Arrow's type for JSON, which
`datasets` 5 reads as it was written. JSONL has no types, and `load_dataset("json")` guesses them before it looks at any
features: a text that looks like a date becomes "2026-01-01 00:00:00". So a file of features is written next to it for
`Dataset.from_generator`, which takes what Python reads.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from rollbus.consumers.export.numbers import HALF_CHARACTER, UnfitRowError, exact_json

FileFormat = Literal["parquet", "jsonl"]
Row = dict[str, Any]
Refuse = Callable[[str], None]
"""Called with the reason why a row was left out."""
FEATURES = "features.json"
ROWS_PER_GROUP = 1_000

_JSON, _JSONS = pa.json_(), pa.list_(pa.json_())
_TEXT, _LONG, _REAL = pa.string(), pa.int64(), pa.float64()
_TIME = pa.timestamp("ms", tz="UTC")
_TYPES: dict[str, pa.DataType] = {
    **dict.fromkeys(("messages", "prompt", "completion", "chosen", "rejected", "tools"), _JSONS),
    **dict.fromkeys(("turns", "tokens", "sampled_tokens", "min_policy_version", "policy_version"), _LONG),
    **dict.fromkeys(("step", "attempts"), _LONG),
    **dict.fromkeys(("reward", "chosen_score", "rejected_score", "reference_reward"), _REAL),
    **dict.fromkeys(("started_at", "ended_at"), _TIME),
    "reference": _JSON,
    "labels": pa.list_(pa.struct({"name": _TEXT, "value": _TEXT})),
    "components": pa.list_(pa.struct({"name": _TEXT, "value": _REAL})),
    "trainable": pa.bool_(),
    "conversations": pa.list_(_JSONS),
    "reward_model": pa.struct({"style": _TEXT, "ground_truth": _TEXT}),
    "extra_info": pa.struct({"index": _TEXT, "reference_reward": _REAL, "attempts": _LONG}),
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
_WITH_TOOLS = frozenset({"messages", "completion", "chosen", "reference"})
"""Rows with one of these may have `tools`, too."""
PLAIN_MESSAGES = pa.list_(pa.struct({"role": _TEXT, "content": _TEXT}))
"""For a reader that takes Parquet without Json columns."""
_LINE_ENDS = str.maketrans({"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})
"""NeMo AutoModel and others split a file into lines by Python's rules, which know these, too."""


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


def write_rows(
    folder: Path,
    name: str,
    rows: Iterable[Row],
    file_format: FileFormat,
    *,
    types: dict[str, pa.DataType] | None = None,
    has_features: bool = True,
    refuse: Refuse = lambda reason: None,
) -> WrittenFile:
    """Write one file; `types` replace those of some columns. JSONL that `datasets` reads gets a file of features."""
    path = path_of(folder, name, file_format)
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = _TYPES | (types or {})
    if file_format == "parquet":
        count = _write_parquet(path, rows, columns, refuse)
    else:
        count, names = _write_jsonl(path, rows, columns if has_features else {}, refuse)
        if has_features:
            _add_features(folder / FEATURES, {column: _feature(columns.get(column, _TEXT)) for column in names})
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return WrittenFile(str(path.relative_to(folder)), count, path.stat().st_size, digest)


def _add_features(path: Path, features: Row) -> None:
    """Write the features of one more file of an export: all of its files are loaded with the same."""
    earlier = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**earlier, **features}, indent=1) + "\n")


def _write_jsonl(
    path: Path, rows: Iterable[Row], columns: dict[str, pa.DataType], refuse: Refuse
) -> tuple[int, dict[str, None]]:
    """Write lines, and return their number and the names of their columns."""
    count = 0
    names: dict[str, None] = {}
    with path.open("wb") as file:
        for row in rows:
            try:
                for column, value in row.items():
                    if _is_json(columns.get(column, _TEXT)):
                        exact_json(value, rewritten=True)
                line = json.dumps(row, ensure_ascii=False, default=_iso_time).translate(_LINE_ENDS).encode() + b"\n"
            except UnfitRowError as error:
                refuse(str(error))
                continue
            except UnicodeEncodeError:
                refuse(HALF_CHARACTER)
                continue
            file.write(line)
            names |= dict.fromkeys(row)
            count += 1
    return count, names


def _write_parquet(path: Path, rows: Iterable[Row], columns: dict[str, pa.DataType], refuse: Refuse) -> int:
    count = 0
    waiting: list[Row] = []
    writer: pq.ParquetWriter | None = None
    for row in _encode_rows(rows, columns, refuse):
        waiting.append(row)
        count += 1
        if len(waiting) >= ROWS_PER_GROUP:
            writer = _write_group(path, writer, waiting, columns)
            waiting = []
    if waiting or writer is None:
        writer = _write_group(path, writer, waiting, columns)
    writer.close()
    return count


def _encode_rows(rows: Iterable[Row], columns: dict[str, pa.DataType], refuse: Refuse) -> Iterator[Row]:
    for row in rows:
        try:
            yield {name: _encode(value, columns.get(name, _TEXT)) for name, value in row.items()}
        except UnfitRowError as error:
            refuse(str(error))


def _encode(value: Any, column: pa.DataType) -> Any:
    """Return a value as its column stores it."""
    if value is None or not _is_json(column):
        return value
    return exact_json(value) if column == _JSON else [_encode(item, column.value_type) for item in value]


def _write_group(
    path: Path, writer: pq.ParquetWriter | None, rows: list[Row], columns: dict[str, pa.DataType]
) -> pq.ParquetWriter:
    if writer is None:
        names = dict.fromkeys(name for row in rows for name in row)
        if columns["messages"] == _JSONS and not names.keys().isdisjoint(_WITH_TOOLS):
            names["tools"] = None  # a later row may have some
        schema = pa.schema({name: columns.get(name, _TEXT) for name in names})
        writer = pq.ParquetWriter(path, schema, compression="zstd")
    stored = pa.schema({field.name: _storage(field.type) for field in writer.schema})
    writer.write_table(pa.Table.from_pylist(rows, schema=stored).cast(writer.schema))
    return writer


def _is_json(column: pa.DataType) -> bool:
    return column == _JSON or (pa.types.is_list(column) and _is_json(column.value_type))


def _storage(column: pa.DataType) -> pa.DataType:
    """Return the type as which JSON is stored."""
    if not _is_json(column):
        return column
    return _TEXT if column == _JSON else pa.list_(_storage(column.value_type))


def _feature(column: pa.DataType) -> Any:
    """Return a type as `datasets.Features.from_dict` takes it."""
    if column == _JSON:
        return {"_type": "Json"}
    if pa.types.is_list(column):
        return {"_type": "List", "feature": _feature(column.value_type)}
    if pa.types.is_struct(column):
        return {field.name: _feature(field.type) for field in column}
    dtype = {_REAL: "float64", pa.float32(): "float32", _TIME: "string"}.get(column, str(column))  # JSON has no times
    return {"_type": "Value", "dtype": dtype}


def _iso_time(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} has no JSON form")
