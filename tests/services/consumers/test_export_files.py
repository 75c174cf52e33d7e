"""Whole files, as the library reads them that trainers load data sets with."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollbus.consumers.export.formats import conversation_row
from rollbus.consumers.export.writing import ROWS_PER_GROUP, FileFormat, write_rows

pytestmark = pytest.mark.services

PLAIN = [{"role": "user", "content": "x" * 12_000}, {"role": "assistant", "content": "y"}]
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLING: list[dict[str, Any]] = [
    {"role": "user", "content": "x"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "r", "tool_call_id": "1"},
]
TOOLS = '[{"type": "function"}]'
MANY = ROWS_PER_GROUP + 100
"""More than a row group of Parquet, and more bytes than are looked at for the columns of JSONL."""


def rows() -> Iterator[dict[str, Any]]:
    for number in range(MANY):
        yield conversation_row(PLAIN, trajectory_id=f"plain {number}", reward=None)
    for number in range(3):
        yield conversation_row(CALLING, tools=TOOLS, trajectory_id=f"calling {number}", reward=0.5)


@pytest.mark.parametrize("file_format", ["jsonl", "parquet"])
def test_fields_that_come_late_in_a_large_file_are_loaded(tmp_path: Path, file_format: FileFormat) -> None:
    from datasets import load_dataset  # seconds, which only the process that runs this test spends

    written = write_rows(tmp_path, "train", rows(), file_format)
    kind = "json" if file_format == "jsonl" else "parquet"
    path, cache = str(tmp_path / written.path), str(tmp_path / "cache")
    loaded = load_dataset(kind, data_files=path, cache_dir=cache, split="train")
    found = {row["trajectory_id"]: row for row in loaded}
    assert (written.rows, len(found)) == (MANY + 3, MANY + 3)
    for number in range(3):
        row = found[f"calling {number}"]
        assert (row["tools"], row["reward"]) == (TOOLS, 0.5)
        assert row["messages"][1]["tool_calls"][0]["function"]["name"] == "f"
        assert row["messages"][2]["tool_call_id"] == "1"
    assert (found["plain 7"]["tools"], found["plain 7"]["reward"]) == (None, None)
    assert sorted(path.name for path in tmp_path.glob("train*")) == [f"train.{file_format}"]


def test_a_set_without_tools_names_none(tmp_path: Path) -> None:
    write_rows(tmp_path, "train", [conversation_row(PLAIN, reward=1.0)] * 2, "jsonl")
    assert b"tools" not in (tmp_path / "train.jsonl").read_bytes()
