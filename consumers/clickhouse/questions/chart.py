"""An answer → bars in the terminal: the first column names them, a number gives their length. Pure."""

import math
from collections.abc import Sequence
from typing import Any

from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rollbus.consumers.clickhouse.questions.output import cell
from rollbus.schemas.errors import ConfigurationError

MAX_BARS = 60
"""Of more rows an even selection is drawn, with the last one."""
_SERIES = frozenset(
    {"label", "task", "metric", "component", "name", "fate", "stage", "reason", "model", "tool", "what", "k", "of",
     "partition", "policy_version"}
)  # fmt: skip
"""Columns that name a row together with the first column."""


def as_chart(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, value: str | None = None) -> RenderableType:
    """Return one bar per row, of the column `value` or of the first column of numbers after the names."""
    if not rows:
        return Text("no rows")
    position = _value_column(columns, rows, value)
    labels = [index for index in range(max(1, position)) if index == 0 or columns[index] in _SERIES]
    bars = _thin_out(rows)
    numbers = [_length(row[position]) for row in bars]
    low, high = min(0.0, *numbers), max(0.0, *numbers)
    table = Table(box=None, pad_edge=False, show_header=False)
    for _ in range(3):
        table.add_column(no_wrap=True)
    for row, number in zip(bars, numbers, strict=True):
        ends = sorted((0.0 - low, number - low))
        bar = Bar(high - low or 1.0, ends[0], ends[1], width=60)
        table.add_row(" ".join(cell(row[index]) for index in labels), bar, cell(row[position]))
    return Group(Text(columns[position], style="bold"), table)


def _length(value: float | None) -> float:
    """Return the length of a value's bar; 0 for a missing or non-finite value."""
    return float(value) if value is not None and math.isfinite(value) else 0.0


def _value_column(columns: Sequence[str], rows: Sequence[Sequence[Any]], value: str | None) -> int:
    if value is not None:
        if value not in columns:
            raise ConfigurationError(f"no column {value!r}; there are {', '.join(columns)}")
        index = list(columns).index(value)
        if any(row[index] is not None for row in rows) and not _is_numeric(rows, index):
            raise ConfigurationError(f"column {value!r} holds no numbers, and a bar has the length of one")
        return index
    means = [index for index, name in enumerate(columns) if index and "mean" in name and _is_numeric(rows, index)]
    numeric = [index for index in range(1, len(columns)) if _is_numeric(rows, index)]
    if not numeric:
        raise ConfigurationError("a chart needs a column of numbers after the first; choose another output")
    return (means or numeric)[0]


def _is_numeric(rows: Sequence[Sequence[Any]], index: int) -> bool:
    values = [row[index] for row in rows if row[index] is not None]
    return bool(values) and all(isinstance(item, (int, float)) and not isinstance(item, bool) for item in values)


def _thin_out(rows: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    if len(rows) <= MAX_BARS:
        return list(rows)
    return [rows[round(index * (len(rows) - 1) / (MAX_BARS - 1))] for index in range(MAX_BARS)]
