"""Answers as text."""

import io
import json
import math
from datetime import UTC, datetime
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from rollbus.consumers.clickhouse.questions.chart import as_chart
from rollbus.consumers.clickhouse.questions.output import as_csv, as_json, as_table, cell
from rollbus.consumers.clickhouse.questions.parquet import write_parquet
from rollbus.schemas.errors import ConfigurationError

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


def test_a_too_wide_table_is_shown_row_by_row_with_whole_ids() -> None:
    columns = [f"{kind}_id" for kind in ("group", "trajectory", "episode", "event", "batch", "writer")]
    rows = [tuple(f"{name}-{number}".ljust(32, "f") for name in columns) for number in range(2)]
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(as_table(columns, rows, title="wide", width=80))
    lines = console.export_text().splitlines()
    assert lines[:3] == ["wide", "row 1 of 2 " + "─" * 69, f"group_id       {rows[0][0]}"]
    assert [line.split()[-1] for line in lines if line.startswith("event_id")] == [row[3] for row in rows]
    console.print(as_table(columns[:2], rows, width=80))
    assert "┃ group_id" in console.export_text()


def test_a_table_that_just_fits_folds_sentences_and_no_id_or_time() -> None:
    """Who copies an id from two lines asks for one that does not exist."""
    trajectory, time = "b12e826d-b98e-5fad-8cdc-333aade41d2f", datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
    columns, rows = ["trajectory_id", "at", "detail", "count"], [(trajectory, time, "one word after another " * 9, 7)]
    for width in (90, 100, 160):
        console = Console(width=width, file=io.StringIO(), record=True)
        console.print(as_table(columns, rows, width=width))
        text = console.export_text()
        assert "┃ trajectory_id" in text
        assert f"│ {trajectory} │ 2026-01-02T03:04:05.678Z │" in text
        assert max(map(len, text.splitlines())) <= width
    assert "┃" not in text_of(as_table(columns, rows, width=80)), "no room for both"


def test_text_that_looks_like_markup_stays_text() -> None:
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(as_table(["text"], [("[bold]plain[/bold]",)]))
    assert "[bold]plain[/bold]" in console.export_text()


def test_long_lists_and_maps_are_shortened_in_a_cell() -> None:
    assert cell(list(range(10))) == "0, 1, 2, 3, 4, 5, 6, 7, … 2 more"
    assert cell({"a": 0.5}) == "a=0.5"


def text_of(renderable: Any) -> str:
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(renderable)
    return console.export_text()


def test_a_chart_draws_the_mean_of_each_row() -> None:
    columns = ["policy_version", "trajectories", "reward_mean"]
    lines = text_of(as_chart(columns, [(0, 900, 0.25), (1, 20, 0.5), (2, 20, None)])).splitlines()
    assert lines[0].strip() == "reward_mean"
    assert [line.split()[0] for line in lines[1:]] == ["0", "1", "2"]
    assert lines[1].count("█") * 2 == lines[2].count("█") > 20
    assert lines[3].count("█") == 0
    assert "900" in text_of(as_chart(columns, [(0, 900, 0.25)], value="trajectories"))


def test_a_chart_of_many_rows_is_thinned_and_keeps_both_ends() -> None:
    lines = text_of(as_chart(["step", "loss"], [(step, step / 7) for step in range(1000)])).splitlines()
    assert (len(lines), lines[1].split()[0], lines[-1].split()[0]) == (61, "0", "999")


def test_a_number_that_is_not_finite_has_no_bar() -> None:
    rows = [("a", math.nan), ("b", 1.0), ("c", math.inf), ("d", -math.inf)]
    lines = text_of(as_chart(["task", "correlation"], rows)).splitlines()
    assert [line.count("█") > 0 for line in lines[1:]] == [False, True, False, False]
    assert [line.split()[-1] for line in lines[1:]] == ["nan", "1", "inf", "-inf"]


def test_a_chart_without_numbers_or_of_an_unknown_column_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="needs a column of numbers"):
        as_chart(["name", "task"], [("a", "b")])
    with pytest.raises(ConfigurationError, match="no column 'loss'; there are name, value"):
        as_chart(["name", "value"], [("a", 1)], value="loss")
    with pytest.raises(ConfigurationError, match="column 'task' holds no numbers"):
        as_chart(["name", "task", "value"], [("a", "b", 1)], value="task")
    assert "a" in text_of(as_chart(["name", "value"], [("a", None)], value="value"))


def test_parquet_keeps_types_lists_and_maps(tmp_path: Path) -> None:
    path = tmp_path / "answer.parquet"
    rows = [("a", 1, 0.5, ["x"], {"loss": 0.25}, ROWS[0][2]), ("b", None, None, [], {}, None)]
    write_parquet(path, ["name", "count", "mean", "ids", "metrics", "at"], rows)
    read_rows = pq.read_table(path).to_pylist()
    assert read_rows[0] == {
        "name": "a",
        "count": 1,
        "mean": 0.5,
        "ids": ["x"],
        "metrics": [("loss", 0.25)],
        "at": ROWS[0][2],
    }
    assert (read_rows[1]["count"], read_rows[1]["metrics"]) == (None, [])
    write_parquet(path, ["name"], [])
    assert pq.read_table(path).num_rows == 0


def test_a_parquet_file_takes_every_type_that_clickhouse_answers(tmp_path: Path) -> None:
    columns = {
        "tuple": [(1, "a"), (2, "b")],
        "list_of_tuples": [[(1, "a")], []],
        "address": [IPv4Address("1.2.3.4"), None],
        "hash": [2**64 - 1, 1],
        "wide": [2**70, -1],
        "by_number": [{1: 2}, {}],
        "labels": [{"user": "ann"}, {}],
        "reward": [0.5, None],
    }
    path = tmp_path / "answer.parquet"
    write_parquet(path, list(columns), list(zip(*columns.values(), strict=True)))
    read = pq.read_table(path).to_pydict()
    assert read == {
        "tuple": ['[1, "a"]', '[2, "b"]'],
        "list_of_tuples": ['[[1, "a"]]', "[]"],
        "address": ["1.2.3.4", None],
        "hash": [2**64 - 1, 1],
        "wide": [str(2**70), "-1"],
        "by_number": ['{"1": 2}', "{}"],
        "labels": [[("user", "ann")], []],
        "reward": [0.5, None],
    }
