"""Answers as text."""

import io
import json
from datetime import UTC, datetime

from rich.console import Console

from rollbus.consumers.clickhouse.output import as_csv, as_json, as_table, cell

COLUMNS = ["name", "value", "at", "ids"]
ROWS = [("a,b", 0.123456, datetime(2026, 1, 2, tzinfo=UTC), ["x", "y"]), ("c", None, None, [])]


def test_csv_has_a_header_and_quotes_what_needs_it() -> None:
    assert as_csv(COLUMNS, ROWS).splitlines() == [
        "name,value,at,ids",
        '"a,b",0.123456,2026-01-02T00:00:00+00:00,"[""x"", ""y""]"',
        "c,,,[]",
    ]


def test_json_is_one_object_per_line_and_knows_no_nan() -> None:
    lines = [json.loads(line) for line in as_json(COLUMNS, [*ROWS, ("d", float("nan"), None, [])]).splitlines()]
    assert lines[0] == {"name": "a,b", "value": 0.123456, "at": "2026-01-02T00:00:00+00:00", "ids": ["x", "y"]}
    assert lines[2]["value"] is None


def test_a_table_shows_every_column_and_shortens_numbers() -> None:
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(as_table(COLUMNS, ROWS, title="things"))
    text = console.export_text()
    assert "things" in text
    assert "0.1235" in text
    assert "–" in text


def test_text_that_looks_like_markup_stays_text() -> None:
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(as_table(["text"], [("[bold]plain[/bold]",)]))
    assert "[bold]plain[/bold]" in console.export_text()


def test_long_lists_and_maps_are_shortened_in_a_cell() -> None:
    assert cell(list(range(10))) == "0, 1, 2, 3, 4, 5, 6, 7, … 2 more"
    assert cell({"a": 0.5}) == "a=0.5"
