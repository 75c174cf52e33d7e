"""ART inside the trainer's process keeps to the contract that the art-server and the memory backend keep to."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.contracts.backend import BackendContract
from tests.services.art.fixtures import Launcher

pytestmark = pytest.mark.services

TESTS = sum(name.startswith("test_") for name in dir(BackendContract)) + 5
"""Those of the contract, and five of its own."""


def test_art_local_keeps_to_the_contract(art_launcher: Launcher, art_base_model: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    art_launcher.call("tests.services.art.local_contract:run", str(art_base_model), str(report))
    assert report.exists(), art_launcher.log.read_text(encoding="utf-8")[-4000:]
    (suite,) = ElementTree.parse(report).getroot()
    failed = [each.get("name") for each in suite if len(each)]
    assert (len(suite), failed) == (TESTS, []), art_launcher.log.read_text(encoding="utf-8")[-4000:]
