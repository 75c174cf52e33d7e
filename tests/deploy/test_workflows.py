"""What runs at a forge: pinned actions, the fewest permissions, targets that exist; and one version everywhere."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from rollbus import __version__

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAKEFILES = "\n".join((ROOT / folder / "Makefile").read_text() for folder in (".", "tests", "benchmarks"))


def jobs_of(path: Path) -> dict[str, dict[str, Any]]:
    jobs: dict[str, dict[str, Any]] = yaml.safe_load(path.read_text())["jobs"]
    return jobs


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_workflow_has_pinned_actions_and_least_permissions(path: Path) -> None:
    assert yaml.safe_load(path.read_text())["permissions"] == {}
    for job in jobs_of(path).values():
        assert "timeout-minutes" in job or "needs" in job
        for step in job["steps"]:
            assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", step.get("uses", "a/b@" + "0" * 40)), step
        writes = {name for name, level in job["permissions"].items() if level == "write"}
        runs_our_code = any("actions/checkout" in step.get("uses", "") for step in job["steps"])
        assert not (writes and runs_our_code), "code of the checkout runs without a right to write"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_target_and_script_of_a_workflow_exists(path: Path) -> None:
    text = "\n".join(step.get("run", "") for job in jobs_of(path).values() for step in job["steps"])
    for target in re.findall(r"\bmake (\w[\w-]*)", text):
        assert re.search(rf"^{target}:", MAKEFILES, flags=re.MULTILINE), target
    for script in re.findall(r"(?:bash |^)((?:\.ci|scripts)/[\w-]+)", text, flags=re.MULTILINE):
        assert (ROOT / script).exists(), script


def test_the_package_the_changelog_and_the_manifests_have_one_version() -> None:
    assert f'\nversion = "{__version__}"\n' in (ROOT / "pyproject.toml").read_text()
    assert re.search(r"^## (\S+),", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1] == __version__  # type: ignore[index]
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    assert set(re.findall(r"registry\.example\.org/[\w-]+:(\S+)", page)) == {__version__}
    assert f"rollbus-{__version__}-py3-none-any.whl" in (ROOT / "docs" / "install.md").read_text()
