"""Read an export without the library that trainers use: Parquet's JSON columns decoded by Python."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a Parquet or JSONL file."""
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_bytes().splitlines()]
    table = pq.read_table(path)
    types = {field.name: field.type for field in table.schema}
    return [{name: _decode(value, types[name]) for name, value in row.items()} for row in table.to_pylist()]


def _decode(value: Any, column: pa.DataType) -> Any:
    if value is None:
        return None
    if column == pa.json_():
        return json.loads(value)
    return [_decode(item, column.value_type) for item in value] if pa.types.is_list(column) else value
