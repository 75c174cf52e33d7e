"""What ART packs is what grouping decided: the advantages of the Group record, on exactly the sampled tokens."""

import json
from pathlib import Path

import pytest

from tests.services.art.fixtures import Launcher
from tests.services.art.packing_case import expected

pytestmark = pytest.mark.services


@pytest.mark.parametrize("aggregation", ["token_mean", "trajectory_mean", "prompt_mean"])
def test_packed_advantages_and_temperatures_are_those_given(
    art_launcher: Launcher, art_base_model: Path, tmp_path: Path, aggregation: str
) -> None:
    findings = tmp_path / "packed.json"
    arguments = (str(art_base_model), str(tmp_path / "art"), aggregation, str(findings))
    art_launcher.call("tests.services.art.packing_case:pack", *arguments)
    found = json.loads(findings.read_text(encoding="utf-8"))
    assert len(found) == len(expected(aggregation))
    for one, two in zip(found, sorted(expected(aggregation)), strict=True):
        assert one == pytest.approx(two, rel=1e-5, abs=1e-6)
