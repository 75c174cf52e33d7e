"""An answer → a Parquet file: columns keep their types, lists and maps included; other values become text.

A column is read by the first of three readers that takes all its values: as Arrow infers, as uint64, as text.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rollbus.consumers.clickhouse.questions.output import as_text


def write_parquet(path: Path, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Write the answer; a map becomes a list of its pairs, Parquet's form."""
    values = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
    arrays = {name: _make_column(column) for name, column in zip(columns, values, strict=True)}
    pq.write_table(pa.table(arrays), path, compression="zstd")


def _make_column(values: Sequence[Any]) -> pa.Array:
    """Return a column of the first type that takes all values; tuples, addresses and the like are text as in CSV."""
    for convert in (_infer_type, _as_unsigned):
        try:
            return convert(values)
        except (pa.ArrowException, OverflowError, TypeError):
            continue
    return pa.array([None if value is None else as_text(value) for value in values], pa.string())


def _as_unsigned(values: Sequence[Any]) -> pa.Array:
    """Return a column of hashes: Arrow infers int64, which half of the 64-bit hashes exceed; raises TypeError."""
    # Not by isinstance, nor by Arrow's own check: an IP address converts to a whole number too, and a bool is one.
    if not all(value is None or type(value) is int for value in values):
        raise TypeError("not whole numbers")
    return pa.array(values, pa.uint64())


def _infer_type(values: Sequence[Any]) -> pa.Array:
    """Return a column of the type that Arrow infers; dicts are maps, whose values have the type of their first one."""
    if any(isinstance(value, dict) for value in values):
        sample = next((item for value in values if value for item in value.values()), 0.0)
        return pa.array([list((value or {}).items()) for value in values], pa.map_(pa.string(), pa.scalar(sample).type))
    return pa.array(list(values))
