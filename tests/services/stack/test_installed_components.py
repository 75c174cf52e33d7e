"""The three components of the guide on extending, in a package of their own that pip installs, on the real stack."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from rollbus.consumers.clickhouse.questions.saved_questions import ask
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from rollbus.local.process.tether import tethered
from tests.console import ROLLBUS
from tests.installs import own_environment
from tests.services.art.fixtures import MODEL, ArtServer
from tests.services.settings_file import write_settings

pytestmark = [pytest.mark.services, pytest.mark.timeout(900)]

NEMO = Path(__file__).parents[2] / "nemo"
COMPONENTS, GUIDE = NEMO / "guide_components.py", NEMO / "guides" / "extending.yml"
EXAMPLES, GENERATIONS, EPOCHS = 3, 4, 2
"""Generations as in the guide."""
PROJECT = f"""
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "my-components"
version = "1"

[project.entry-points."nat.components"]
my_components = "{COMPONENTS.stem}"

[tool.setuptools]
py-modules = ["{COMPONENTS.stem}"]
"""


def install(project: Path, site: Path) -> None:
    """Install the components as their author does; what they need is here already."""
    project.mkdir()
    shutil.copy(COMPONENTS, project)
    (project / "pyproject.toml").write_text(PROJECT)
    pip = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation")
    give(*pip, "--target", site, project, cwd=project, environment=own_environment())


def give(*command: object, cwd: Path, environment: Mapping[str, str]) -> str:
    result = subprocess.run(
        [*tethered(), *map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=400
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-6000:]
    return result.stdout


def test_the_guides_components_train_from_a_package_of_their_own(
    kafka: str, clickhouse: tuple[str, int], art_server: ArtServer, tmp_path: Path
) -> None:
    install(tmp_path / "project", site := tmp_path / "site")
    (folder := tmp_path / "work").mkdir()
    write_settings(folder, kafka, clickhouse, "components")
    guide = yaml.safe_load(GUIDE.read_text())
    guide["llms"]["my_model"] |= {"model_name": MODEL, "base_url": art_server.model_url, "api_key": "none"}
    guide["finetuning"]["num_epochs"] = EPOCHS
    guide["rollbus"] = {"run_id": "components"}
    (folder / "finetune.yml").write_text(yaml.safe_dump(guide))
    (folder / "data").mkdir()
    rows = [{"id": f"e{n}", "question": f"choose a letter {n}", "answer": "a"} for n in range(EXAMPLES)]
    (folder / "data" / "train.json").write_text(json.dumps(rows))

    environment = {**own_environment(), "PYTHONPATH": str(site), "TRAINING_API_KEY": "of the guide"}
    command = (ROLLBUS, "--config", "rollbus.yaml", "finetune", "--config_file", "finetune.yml")
    printed = give(*command, cwd=folder, environment=environment)

    assert "components, completed\n" in printed, "an own trainer writes the lines of its epochs itself"
    host, port = clickhouse
    database = ClickHouseSettings(host=host, port=port, database="components")
    steps = (
        "SELECT uniqExact(step), sum(trained) FROM steps FINAL WHERE namespace = 'components.' AND state = 'completed'"
    )
    ((completed, trained),) = ask(database, steps).rows
    assert (completed, trained) == (EPOCHS, EPOCHS * EXAMPLES * GENERATIONS), printed
