"""Exports for `datasets` and TRL, loaded by the printed line and rendered by TRL's chat templates."""

import json
from pathlib import Path
from typing import Any

import pytest

from rollbus.consumers.export.numbers import HALF_CHARACTER
from tests.readers.cases import CHANGED_EPISODES, episodes, write_export, write_truth
from tests.readers.environments import run_check

pytestmark = pytest.mark.slow

CHANGED_IN_JSONL = {"messages": ["tools", "single"], "prompt-completion": ["single"]}
"""Rows with 1.7 or 0.3, which `datasets` reads as other numbers unless they are spelled for it."""


@pytest.mark.parametrize("layout", ["messages", "prompt-completion"])
def test_every_row_arrives_as_it_was_recorded(layout: str, tmp_path: Path) -> None:
    checks: list[dict[str, Any]] = []
    what = "conversations" if layout == "messages" else "answers"
    chosen = [episode for episode in episodes() if layout == "messages" or len(episode.turns) == 1]
    for file_format, changed in (("parquet", []), ("jsonl", CHANGED_IN_JSONL[layout])):
        folder = tmp_path / file_format
        request: dict[str, Any] = {"reader": "trl", "kind": "sft", "sft_layout": layout, "file_format": file_format}
        _, left_out, line = write_export(folder, [*chosen, *CHANGED_EPISODES], **request)
        assert left_out == {
            "not text": 1,
            f"{what} with arguments that are not a JSON object": 1,
            f"{what} {HALF_CHARACTER}": 1,
            "rows with a whole number of more than 64 bits, which the reader refuses": 1,
            "rows with a number that the reader would change": 1 + len(changed),
        }
        truth = write_truth(folder, chosen, leave_out=changed)
        checks.append({"line": line, "truth": str(truth), "templates": (layout, changed) == ("messages", [])})
    (tmp_path / "checks.json").write_text(json.dumps(checks))
    printed = run_check("trl", "check_datasets", tmp_path)
    assert printed.count("rows as recorded") == 2
    assert ("templates render every row" in printed) == (layout == "messages")
