"""`rollbus finetune` with the bus's own builder, adapter and trainer, killed and resumed on a real broker and server.

An attempt's answer depends on the weights and on its place in the run alone. So the files of a run that was killed
while it played and while it trained are those of one that was not, but for times and the rounding of float32.
"""

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from tests.faults.finetune import placed_workflow, seeded_workflow
from tests.faults.finetune.placed_workflow import EPOCHS, EXAMPLES, GENERATIONS
from tests.faults.finetune.test_finetune_kills import DEADLINE_S, files_of, log_of, start
from tests.faults.finetune.test_toolkit_side_by_side import flattened, served
from tests.finetuning import art_adapter, configuration
from tests.services.art_fixtures import MODEL, ArtServer, Launcher, art_base_model, art_launcher
from tests.services.conftest import clickhouse
from tests.services.settings_file import write_settings

__all__ = ["art_base_model", "art_launcher", "clickhouse"]

pytestmark = [pytest.mark.services, pytest.mark.faults, pytest.mark.timeout(1500)]

PARTS = (Path(seeded_workflow.__file__), Path(placed_workflow.__file__))
TIMES = ("step_update_seconds",)
KILLED_AFTER = ("Starting epoch 1 ", "Submitted ", "Starting epoch 3 ")
"""Lines of the run: it plays, it trains, it plays the last epoch."""


def test_a_run_of_the_bus_that_is_killed_and_resumed_has_the_files_of_one_that_was_not(
    kafka: str,
    clickhouse: tuple[str, int],
    art_launcher: Launcher,
    art_base_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    chance: random.Random,
) -> None:
    found = []
    for name, kills in (("quiet", ()), ("killed", KILLED_AFTER)):
        folder = tmp_path / name
        monkeypatch.setenv("RUN", name)
        with served(art_launcher, art_base_model, folder) as art:
            prepare(folder, art, kafka, clickhouse)
            run_to_its_end(folder, kills, chance)
        found.append({key: value for key, value in flattened(files_of(folder)) if key.split(".")[-1] not in TIMES})
    quiet, killed = found
    assert len(quiet) > 100, quiet.keys()
    assert killed.keys() == quiet.keys()
    for place, value in quiet.items():  # the sampler's rounding depends on who asks at the same time
        assert killed[place] == (pytest.approx(value, rel=1e-5, abs=1e-5) if isinstance(value, float) else value), place


def run_to_its_end(folder: Path, kills: Sequence[str], chance: random.Random) -> None:
    """Kill the run some moments after each of these lines; resume it after each kill."""
    for number, line in enumerate([*kills, None]):
        log = folder / "finetune.log"
        before = len(log.read_text()) if number else 0
        process = start(folder, *(["--resume"] if number else []))
        if line is None:
            assert process.wait(DEADLINE_S) == 0, log_of(folder)
            return
        deadline = time.monotonic() + DEADLINE_S
        while line not in log.read_text()[before:]:
            assert process.poll() is None, log_of(folder)
            assert time.monotonic() < deadline, log_of(folder)
            time.sleep(0.02)
        time.sleep(chance.random())
        assert process.poll() is None, log_of(folder)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(DEADLINE_S) == -signal.SIGKILL


def prepare(folder: Path, art: ArtServer, kafka: str, database: tuple[str, int]) -> None:
    for path in PARTS:
        shutil.copy(path, folder)
    write_settings(folder, kafka, database, f"bus_kills_{folder.name}")
    rows = [{"id": f"train-{n}", "question": f"choose train-{n}", "answer": ""} for n in range(EXAMPLES)]
    (folder / "train.json").write_text(json.dumps(rows))
    document = configuration(
        art.model_url,
        llm={"model_name": MODEL, "temperature": 1.0, "logprobs": True},
        workflow="placed",
        evaluators={"checksum": {"_type": "checksum"}},
        dataset="train.json",
        builder={"_type": "rollbus_traj_builder", "num_generations": GENERATIONS},
        adapter={**art_adapter(art.control_port, MODEL, learning_rate=5e-5), "_type": "rollbus_trainer_adapter"},
        trainer="rollbus_trainer",
        curriculum_learning={"enabled": True, "initial_percentile": 0.3, "expansion_interval": 2},
        num_epochs=EPOCHS,
    )
    document["rollbus"] = {"imports": [path.stem for path in PARTS], "run_id": folder.name, "data_dir": "state"}
    (folder / "finetune.yml").write_text(yaml.safe_dump(document))
