"""Files are written, and named by their hash, without being in memory; columns that come late are in them."""

import hashlib
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollbus.consumers.export.formats import conversation_row
from rollbus.consumers.export.writing import FEATURES, ROWS_PER_GROUP, FileFormat, write_rows
from tests.readers.files import rows_of

MIB = 1 << 20
PLAIN = [{"role": "user", "content": "x" * 1_000}, {"role": "assistant", "content": "y"}]
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
CALLING: list[dict[str, Any]] = [
    {"role": "user", "content": "x"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "r", "tool_call_id": "1"},
]
TOOLS = [{"type": "function"}]
MANY = ROWS_PER_GROUP + 100


def rows() -> Iterator[dict[str, Any]]:
    for number in range(MANY):
        yield conversation_row("hf", PLAIN, trajectory_id=f"plain {number}", reward=None)
    yield conversation_row("hf", CALLING, tools=json.dumps(TOOLS), trajectory_id="calling", reward=0.1)


def test_a_large_file_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        written = write_rows(tmp_path, "train", ({"text": "x" * MIB} for _ in range(24)), "jsonl")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    data = (tmp_path / "train.jsonl").read_bytes()
    assert (written.rows, written.bytes, written.sha256) == (24, len(data), hashlib.sha256(data).hexdigest())
    assert most < 12 * MIB


@pytest.mark.parametrize("file_format", ["parquet", "jsonl"])
def test_columns_that_come_late_in_a_large_file_are_in_it(tmp_path: Path, file_format: FileFormat) -> None:
    written = write_rows(tmp_path, "train", rows(), file_format)
    *plain, calling = rows_of(tmp_path / written.path)
    assert (written.rows, len(plain)) == (MANY + 1, MANY)
    assert (calling["tools"], calling["reward"]) == (TOOLS, 0.1)
    assert calling["messages"][1]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert plain[7]["messages"] == PLAIN, "no key is added"
    assert plain[7].get("tools") is None
    if file_format == "jsonl":
        features = json.loads((tmp_path / FEATURES).read_text())
        assert features["tools"] == features["messages"] == {"_type": "List", "feature": {"_type": "Json"}}
        assert features["reward"] == {"_type": "Value", "dtype": "float64"}


def test_a_line_of_jsonl_is_a_line_by_python_s_rules_too(tmp_path: Path) -> None:
    text = "a\u2028b\u2029c\x85d\x0be\x1cf"
    write_rows(tmp_path, "train", [{"text": text}] * 2, "jsonl")
    lines = (tmp_path / "train.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"text": text}] * 2


@pytest.mark.parametrize("held_back", [[], [{"messages": PLAIN}]])
def test_the_features_of_an_export_are_those_of_all_its_files(tmp_path: Path, held_back: list[dict[str, Any]]) -> None:
    """The part that is held back may have no row, or none with tools."""
    write_rows(tmp_path, "train", [{"messages": CALLING, "tools": TOOLS, "task": "t"}], "jsonl")
    write_rows(tmp_path, "validation", held_back, "jsonl")
    assert list(json.loads((tmp_path / FEATURES).read_text())) == ["messages", "tools", "task"]
