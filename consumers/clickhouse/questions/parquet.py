"""An answer → a Parquet file: columns keep their types, lists and maps included; other values become text."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rollbus.consumers.clickhouse.questions.output import as_text


def write_parquet(path: Path, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Write the answer; a map becomes a list of its pairs, Parquet's form."""
    values = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
    arrays = {name: _array(column) for name, column in zip(columns, values, strict=True)}
    pq.write_table(pa.table(arrays), path, compression="zstd")


def _array(values: Sequence[Any]) -> pa.Array:
    """Return a column; tuples, addresses and the like are text as in CSV."""
    for convert in (_typed, _unsigned):
        try:
            return convert(values)
        except (pa.ArrowException, OverflowError, TypeError):
            continue
    return pa.array([None if value is None else as_text(value) for value in values], pa.string())


def _unsigned(values: Sequence[Any]) -> pa.Array:
    """Return a column of hashes; half of them fit into no other type."""
    if not all(value is None or type(value) is int for value in values):
        raise TypeError("not whole numbers")  # an address has one, too
    return pa.array(values, pa.uint64())


def _typed(values: Sequence[Any]) -> pa.Array:
    if any(isinstance(value, dict) for value in values):
        sample = next((item for value in values if value for item in value.values()), 0.0)
        return pa.array([list((value or {}).items()) for value in values], pa.map_(pa.string(), pa.scalar(sample).type))
    return pa.array(list(values))
