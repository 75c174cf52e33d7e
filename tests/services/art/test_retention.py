"""Checkpoints that retention removes are gone, and nothing of what was trained is forgotten."""

import json
from pathlib import Path

import pytest

from tests.services.art.fixtures import Launcher

pytestmark = pytest.mark.services


def test_old_checkpoints_go_and_lineage_and_journal_stay(
    art_launcher: Launcher, art_base_model: Path, tmp_path: Path
) -> None:
    findings = tmp_path / "retention.json"
    arguments = (str(art_base_model), str(tmp_path / "art"), str(findings))
    art_launcher.call("tests.services.art.retention_case:train", *arguments)
    found = json.loads(findings.read_text(encoding="utf-8"))
    assert found["kept"] == [0, 2, 4, 5], "base, every second, the head and its parent"
    assert (found["head"], found["lineage"]) == (5, [5, 4, 3, 2, 1, 0])
    assert found["trained"] == ["4-0", "4-1"], "turns of the base model stay on the lineage, at any temperature"
    assert found["first"] == 1, "a batch whose checkpoint is gone is still known, and would not train again"
    assert "retention removed it" in found["refusal"]
