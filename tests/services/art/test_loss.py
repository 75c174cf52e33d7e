"""With ART's settings our loss is ART's loss: the same value and gradient on the same tokens."""

import json
from pathlib import Path

import pytest

from tests.services.art.fixtures import Launcher
from tests.services.art.loss_case import CASES

pytestmark = pytest.mark.services


def test_losses_and_gradients_equal_those_of_arts_own_code(art_launcher: Launcher, tmp_path: Path) -> None:
    findings = tmp_path / "losses.json"
    art_launcher.call("tests.services.art.loss_case:compare", str(findings))
    figures_by_case = json.loads(findings.read_text(encoding="utf-8"))
    assert figures_by_case.keys() == CASES.keys()
    for name, figures in figures_by_case.items():
        assert figures["ours"] == pytest.approx(figures["theirs"], rel=1e-7), name
        assert figures["gradient_difference"] < 1e-7 * figures["gradient_size"], name
