"""Answers as a table for the terminal, as CSV or as JSON lines. Pure: values in, text or a renderable out.

If the columns of a table do not fit, each value gets a line of its own, row after row, so that an id stays whole.
"""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from rollbus.schemas.unseen_characters import escape_formula, escape_unseen

MAX_LIST_ITEMS = 8
"""Of a list or map in a table cell; CSV and JSON hold all items."""
NARROWEST = 12
"""Characters of a column that must fit into one line; with fewer, a table is harder to read than a list."""
LONGEST_WHOLE = 40
"""Characters of the longest word that no table breaks: an id has 36. A longer one, such as a digest, may be folded."""


def as_table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str | None = None, width: int | None = None
) -> RenderableType:
    """Return a rich table with numbers to the right; a list of rows if it does not fit into `width`."""
    widths = None if width is None else _fit_columns(columns, rows, width)
    if rows and width is not None and widths is None:
        return _as_list(columns, rows, title)
    table = Table(title=title, title_justify="left")
    for position, name in enumerate(columns):
        numeric = any(_is_number(row[position]) for row in rows)
        column_width = None if widths is None else widths[position]
        table.add_column(name, justify="right" if numeric else "left", overflow="fold", width=column_width)
    for row in rows:
        table.add_row(*(Text(cell(value)) for value in row))
    return table


def _fit_columns(columns: Sequence[str], rows: Sequence[Sequence[Any]], width: int) -> list[int] | None:
    """Return the width of each column, by which headers and ids stay whole; None if there is no room for that."""
    texts = [[name, *(cell(row[position]) for row in rows)] for position, name in enumerate(columns)]
    full_widths = [max(map(len, column)) for column in texts]
    widths = [
        max(len(column[0]), min(NARROWEST, full_width), _longest_word(column))
        for column, full_width in zip(texts, full_widths, strict=True)
    ]
    spare = width - sum(widths) - 3 * len(columns) - 1
    if spare < 0:
        return None
    missing = [full_width - least_width for full_width, least_width in zip(full_widths, widths, strict=True)]
    positions = sorted(range(len(columns)), key=missing.__getitem__)
    for served, position in enumerate(positions):  # equal parts of the room; what a column does not need is the others'
        more = min(missing[position], spare // (len(positions) - served))
        widths[position] += more
        spare -= more
    return widths


def _longest_word(texts: Sequence[str]) -> int:
    return max((length for text in texts for word in text.split() if (length := len(word)) <= LONGEST_WHOLE), default=0)


def _as_list(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str | None) -> RenderableType:
    parts: list[RenderableType] = [Text(title, style="italic")] if title else []
    for number, row in enumerate(rows, start=1):
        fields = Table.grid(padding=(0, 2))
        fields.add_column(no_wrap=True, width=max(map(len, columns)))
        for name, value in zip(columns, row, strict=True):
            fields.add_row(Text(name, style="bold"), Text(cell(value), overflow="fold"))
        parts += [Rule(f"row {number} of {len(rows)}", align="left"), fields]
    return Group(*parts)


def as_csv(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return CSV with a header; an empty field is NULL, lists and maps are JSON.

    A text that a spreadsheet would take for a formula has an apostrophe before it.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(escape_formula, columns))
    for row in rows:
        writer.writerow(["" if value is None else _csv_field(value) for value in row])
    return out.getvalue()


def as_text(value: Any) -> str:
    """Return a value as in CSV."""
    return str(_field(value))


def as_json(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return one JSON object per line; times are ISO 8601, NaN and infinity are null, unseen characters escapes."""
    return "".join(escape_unseen(_json(dict(zip(columns, row, strict=True)))) + "\n" for row in rows)


def cell(value: Any) -> str:
    """Return a value as in a table."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        items = [f"{key}={cell(item)}" for key, item in value.items()]
        return ", ".join(_shorten(items))
    if isinstance(value, (list, tuple)):
        return ", ".join(_shorten([cell(item) for item in value]))
    if isinstance(value, datetime):
        return value.isoformat("T", "milliseconds").replace("+00:00", "Z")
    return escape_unseen(str(_plain(value)))


def _field(value: Any) -> Any:
    return _json(value) if isinstance(value, (list, tuple, dict)) else _plain(value)


def _csv_field(value: Any) -> Any:
    field = _field(value)
    return escape_formula(field) if isinstance(field, str) else field


def _shorten(items: list[str]) -> list[str]:
    more = len(items) - MAX_LIST_ITEMS
    return items if more <= 0 else [*items[:MAX_LIST_ITEMS], f"… {more} more"]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _plain(value: Any) -> Any:
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return value


def _json(value: Any) -> str:
    return json.dumps(make_plain(value), ensure_ascii=False)


def make_plain(value: Any) -> Any:
    """Return a value that JSON can hold; a number that is not finite becomes null, bytes become hex."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(key): make_plain(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [make_plain(element) for element in value]
    return value if value is None or isinstance(value, str | int | bool) else str(value)
