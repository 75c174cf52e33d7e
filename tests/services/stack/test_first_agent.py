"""The example of docs/nemo-first-agent.md as its reader runs it: installed, elsewhere, by the page's commands.

The model is a tiny one that cannot solve the task, so that the run is rewarded for something in which attempts differ.
"""

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rollbus.local.process.tether import tethered
from tests.console import ROLLBUS
from tests.installs import hide_art_plugin, own_environment
from tests.installs import run as run_command
from tests.services.art.fixtures import ArtServer, Launcher
from tests.services.settings_file import write_settings

pytestmark = [pytest.mark.services, pytest.mark.walks, pytest.mark.timeout(900)]

EXAMPLE = Path(__file__).parents[3] / "examples" / "first_agent"
NAT = str(Path(ROLLBUS).with_name("nat"))
DEADLINE_S = 300.0
"""To import the toolkit takes a minute where every processor is busy."""
ROWS, HELD_OUT, ATTEMPTS = 30, 16, 2


@dataclass(slots=True)
class Reader:
    """Someone who copied the example's files into a folder and installed its package."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def running_command(self, *command: str) -> Iterator[subprocess.Popen[bytes]]:
        with (self.folder / f"{command[1]}.log").open("ab") as log:
            process = subprocess.Popen(
                [*tethered(), *command], cwd=self.folder, env=self.environment, stdout=log, stderr=log
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()

    def run(self, *command: str) -> str:
        with self.running_command(*command) as process:
            code = process.wait(DEADLINE_S)
        output = (self.folder / f"{command[1]}.log").read_text()
        assert code == 0, output[-6000:]
        return output

    def evaluate_by_nat(self, *options: str) -> list[float]:
        """Run `nat eval` on the held-out questions; return the scores of the example's own evaluator."""
        held_out = ("--override", "eval.general.dataset.file_path", "held_out.csv")
        self.run(NAT, "eval", "--config_file", "config.yml", *held_out, *options)
        results = json.loads((self.folder / "results" / "eval" / "answer_output.json").read_text())
        return [item["score"] for item in results["eval_output_items"]]


@pytest.fixture
def server(art_launcher: Launcher, tmp_path: Path) -> Iterator[ArtServer]:
    """A server whose model takes the example's prompts."""
    words = "system user assistant price stock apple"
    base_model = art_launcher.make_model(tmp_path / "model", words, max_tokens=512, seed=5)
    art_server = ArtServer(art_launcher, base_model, tmp_path / "data")
    art_server.start()
    yield art_server
    art_server.stop(signal.SIGKILL)


@pytest.fixture
def reader(uv: Path, kafka: str, clickhouse: tuple[str, int], server: ArtServer, tmp_path: Path) -> Reader:
    shutil.copytree(EXAMPLE, tmp_path / "source")
    install = (uv, "pip", "install", "-q", "--python", Path(ROLLBUS).with_name("python"), "--no-build-isolation")
    run_command(*install, "--no-deps", "--target", tmp_path / "site", tmp_path / "source", cwd=tmp_path)
    (folder := tmp_path / "shop").mkdir()
    for name in ("config.yml", "train.csv", "held_out.csv"):
        shutil.copy(EXAMPLE / name, folder)
    write_settings(folder, kafka, clickhouse, "first_agent")
    return Reader(
        folder,
        own_environment()
        | {
            "PYTHONPATH": str(hide_art_plugin(tmp_path / "site")),
            "MODEL_URL": server.model_url,
            "ART_PORT": str(server.control_port),
            "OPENAI_API_KEY": "none",
            "OMP_NUM_THREADS": "1",
        },
    )


def test_a_reader_of_the_page_evaluates_trains_and_serves_an_agent(reader: Reader) -> None:
    before = reader.evaluate_by_nat()
    assert len(before) == HELD_OUT

    output = reader.run(
        *(ROLLBUS, "finetune", "--config_file", "config.yml", "--validation_dataset", "held_out.csv"),
        *("-o", "finetuning.num_epochs", "1", "-o", "trajectory_builders.attempts.num_generations", str(ATTEMPTS)),
        *("-o", "eval.evaluators.speed._type", "avg_llm_latency", "-o", "finetuning.reward_function.name", "speed"),
    )
    lines = (reader.folder / "results/finetune/training_metrics.jsonl").read_text().splitlines()
    (row,) = map(json.loads, lines)
    version = row["step_policy_version"]
    assert row["num_trajectories"] == ROWS * ATTEMPTS
    assert row["step_steps"] == version == ROWS / 6, "groups_per_step, of the trainer's own section"
    assert (reader.folder / "results/finetune/reward_plot.png").stat().st_size
    assert f"agent@{version}" in output
    assert "rollbus finetune serve shop" in output
    assert "Package metadata not found" not in output, "what the toolkit says of its own packages"

    measured = reader.run(ROLLBUS, "finetune", "evaluate", "shop", "--dataset", "held_out.csv")
    assert f"agent@{version}: reward " in measured
    assert f"on {HELD_OUT} examples" in measured

    with reader.running_command(ROLLBUS, "finetune", "serve", "shop") as serving:
        wait_for_line(reader, serving, f"agent@{version} is served at")
        after = reader.evaluate_by_nat("--override", "llms.model.model_name", f"agent@{version}")
        assert len(after) == HELD_OUT
        refused = subprocess.run(
            [ROLLBUS, "finetune", "delete", "shop", "--yes"],
            cwd=reader.folder,
            env=reader.environment,
            capture_output=True,
            text=True,
        )
        assert "run 'shop' is running" in refused.stderr, refused
        serving.send_signal(signal.SIGINT)
        assert serving.wait(DEADLINE_S) == 0
    assert "completed" in reader.run(ROLLBUS, "finetune", "show", "shop"), "it ended as it had, after all of this"


def wait_for_line(reader: Reader, process: subprocess.Popen[bytes], line: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    log = reader.folder / "finetune.log"
    while line not in log.read_text():
        assert process.poll() is None, log.read_text()[-6000:]
        assert time.monotonic() < deadline, log.read_text()[-6000:]
        time.sleep(0.1)
