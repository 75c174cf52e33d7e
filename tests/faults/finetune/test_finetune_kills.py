"""`rollbus finetune` with a builder, an adapter and a trainer of the user's own, killed and resumed on a real broker.

Each attempt asks with a seed of its own and gets the same answer at any time, so an undisturbed run shows what every
file has to hold.
"""

import json
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.faults.finetune.parts import GENERATIONS
from tests.finetuning import configuration, start_finetune
from tests.nemo.world import Steady, rows_in
from tests.services.conftest import clickhouse
from tests.services.settings_file import write_settings

__all__ = ["clickhouse"]

pytestmark = [pytest.mark.services, pytest.mark.faults, pytest.mark.timeout(900)]

PARTS = Path(__file__).with_name("parts.py")
BACKEND = Path(__file__).parents[3] / "examples" / "custom_backend" / "backend.py"
EXAMPLES, EPOCHS, KILLS = 6, 3, 3
OWN_TO_EACH = ("timestamp", "run_id", "step_seconds_outside_backend")
DEADLINE_S = 300.0
"""To import the toolkit takes a minute where every processor is busy."""


def test_a_killed_and_resumed_run_with_own_parts_has_the_same_files(
    kafka: str, clickhouse: tuple[str, int], tmp_path: Path, chance: random.Random
) -> None:
    model = Steady()
    with model.served() as address:
        quiet = folder_of(tmp_path / "quiet", address, kafka, clickhouse)
        assert start(quiet).wait(DEADLINE_S) == 0, log_of(quiet)
        request_count = len(model.requests)
        killed = folder_of(tmp_path / "killed", address, kafka, clickhouse)
        for number in range(KILLS):
            with killing(model, chance.randint(1, request_count // KILLS)) as victim:
                process = start(killed, *(["--resume"] if number else []))
                victim.append(process.pid)
                assert process.wait(DEADLINE_S) == -signal.SIGKILL, log_of(killed)
        assert start(killed, "--resume").wait(DEADLINE_S) == 0, log_of(killed)
    files_of_quiet, files_of_killed = files_of(quiet), files_of(killed)
    assert len(files_of_quiet) > EPOCHS + 3, files_of_quiet.keys()
    assert {row["step_steps"] for row in files_of_quiet["output/training_metrics.jsonl"]} == {1}, "each epoch trained"
    assert files_of_killed == files_of_quiet


@contextmanager
def killing(model: Steady, after: int) -> Iterator[list[int]]:
    """Kill the process that is named in the list when the model has been asked so often."""
    victim: list[int] = []
    left = iter(range(after - 1, -1, -1))

    def count(request: dict[str, Any]) -> None:
        if next(left, None) == 0:
            os.kill(victim[0], signal.SIGKILL)

    model.before = count
    yield victim
    model.before = lambda request: None


def folder_of(folder: Path, address: str, kafka: str, database: tuple[str, int]) -> Path:
    """Return the folder of a run, with everything that its user wrote."""
    folder.mkdir()
    for path in (PARTS, BACKEND):
        shutil.copy(path, folder)
    write_settings(folder, kafka, database, "finetune_kills")
    rows = [{"id": f"e{number}", "question": f"question {number}", "answer": ""} for number in range(EXAMPLES)]
    (folder / "train.json").write_text(json.dumps(rows))
    (folder / "finetune.yml").write_text(yaml.safe_dump(document(address, folder.name)))
    return folder


def start(folder: Path, *options: str) -> subprocess.Popen[bytes]:
    return start_finetune(folder, "--validation_dataset", "train.json", "--validation_interval", "2", *options)


def log_of(folder: Path) -> str:
    return (folder / "finetune.log").read_text()[-6000:]


def files_of(folder: Path) -> dict[str, Sequence[Any]]:
    """Return what a run wrote, by name, without times and the run's own name."""
    return {
        str(path.relative_to(folder)).replace(folder.name, "RUN"): rows_in(path, *OWN_TO_EACH)
        for path in sorted((folder / "output").rglob("*.json*"))
    }


def document(address: str, run_id: str) -> dict[str, Any]:
    plain = configuration(
        address,
        workflow="echo_workflow",
        evaluators={"digit": {"_type": "digit"}},
        dataset="train.json",
        builder={"_type": "twice_over"},
        adapter={"_type": "best_of_adapter", "backend": {"folder": "output/files", "keep_share": 1 / GENERATIONS}},
        trainer="lowest",
        concurrency=2,
        curriculum_learning={"enabled": True, "initial_percentile": 0.5, "min_reward_diff": 0.0},
        num_epochs=EPOCHS,
    )
    return {**plain, "rollbus": {"imports": [PARTS.stem, BACKEND.stem], "run_id": run_id, "data_dir": "state"}}
