"""`rollbus finetune` on a real broker, ClickHouse's engine and ART: it learns, and a kill midway costs nothing."""

import json
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from rollbus.consumers.clickhouse.questions.saved_questions import ask
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from rollbus.local.process.tether import tethered
from tests.console import ROLLBUS
from tests.finetuning import art_adapter, art_builder, configuration, start_finetune
from tests.installs import hide_art_plugin, own_environment
from tests.services.art.fixtures import MODEL, ArtServer
from tests.services.settings_file import write_settings

pytestmark = [pytest.mark.services, pytest.mark.timeout(900)]

WORKFLOW = Path(__file__).with_name("finetune_workflow.py")
EXAMPLES, GENERATIONS, EPOCHS, HELD_OUT = 8, 8, 6, 64
RUN = "even"
DEADLINE_S = 300.0
"""To import the toolkit takes a minute where every processor is busy."""


@dataclass(slots=True)
class Run:
    """One configuration, started as a user starts it."""

    folder: Path
    clickhouse: ClickHouseSettings

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        validation = ("--validation_dataset", "held_out.jsonl", "--validation_interval", str(EPOCHS))
        return start_finetune(self.folder, *validation, *options)

    def log(self) -> str:
        return (self.folder / "finetune.log").read_text()[-6000:]

    def rows(self) -> list[dict[str, Any]]:
        path = self.folder / "output" / "training_metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for_epoch(self, epoch: int, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while len(self.rows()) <= epoch:
            assert process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.05)

    def ask(self, statement: str, run_id: str = RUN) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in ask(self.clickhouse, statement, {"namespace": f"{run_id}."}).rows]


@pytest.fixture
def run(kafka: str, clickhouse: tuple[str, int], own_art_server: ArtServer, tmp_path: Path) -> Run:
    own_art_server.start()
    host, port = clickhouse
    write_settings(tmp_path, kafka, clickhouse, "finetune")
    shutil.copy(WORKFLOW, tmp_path)
    (tmp_path / "finetune.yml").write_text(yaml.safe_dump(document(own_art_server)))
    for name, count in (("train", EXAMPLES), ("held_out", HELD_OUT)):
        lines = [json.dumps({"id": f"{name}-{n}", "question": f"choose {name} {n}"}) for n in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    return Run(tmp_path, ClickHouseSettings(host=host, port=port, database="finetune"))


def document(art: ArtServer) -> dict[str, Any]:
    plain = configuration(
        art.model_url,
        workflow="babble",
        evaluators={"even": {"_type": "evenness"}},
        dataset="train.jsonl",
        builder=art_builder(GENERATIONS),
        adapter=art_adapter(art.control_port, MODEL, learning_rate=1e-2),
        concurrency=32,
        num_epochs=EPOCHS,
    )
    return {**plain, "rollbus": {"imports": [WORKFLOW.stem], "run_id": RUN, "data_dir": "state"}}


@pytest.mark.faults
def test_a_run_killed_in_the_middle_resumes_learns_and_has_every_count(run: Run) -> None:
    first = run.start()
    try:
        run.wait_for_epoch(1, first)
        time.sleep(0.3)  # into the third epoch's play
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    second = run.start("--resume")
    assert second.wait(DEADLINE_S) == 0, run.log()

    rows = run.rows()
    assert [row["epoch"] for row in rows] == list(range(EPOCHS))
    assert [row["num_trajectories"] for row in rows] == [EXAMPLES * GENERATIONS] * EPOCHS
    assert [row["step_policy_version"] for row in rows] == list(range(1, EPOCHS + 1))
    history = json.loads((run.folder / "output" / "validation_history.json").read_text())
    assert [row["epoch"] for row in history] == [0, EPOCHS]
    assert (run.folder / "output" / "reward_plot.png").exists()
    assert "Finetuning completed successfully!" in run.log()

    assert history[1]["avg_reward_low"] > history[0]["avg_reward_high"], history
    statement = """
        SELECT policy_version, metrics['reward_low'], metrics['reward_high'] FROM evaluations FINAL
        WHERE namespace = {namespace:String} ORDER BY policy_version
    """
    (first_version, _, high_before), (last_version, low_after, _) = run.ask(statement)
    assert (first_version, last_version) == (0, EPOCHS)
    assert low_after > high_before, f"validation went from at most {high_before} to at least {low_after}"
    steps = """
        SELECT uniqExact(step), sum(trained) FROM steps FINAL
        WHERE namespace = {namespace:String} AND state = 'completed'
    """
    ((completed, trained),) = run.ask(steps)
    assert completed == EPOCHS
    assert trained == sum(row["num_trajectories"] for row in rows), "no group of so many is without signal"


def test_the_toolkits_own_command_trains_on_the_bus(run: Run) -> None:
    plain = yaml.safe_load((run.folder / "finetune.yml").read_text())
    rollbus_section = plain.pop("rollbus")
    plain["workflow"] = {"_type": "chat_completion", "llm_name": "policy", "system_prompt": "Answer."}
    plain["llms"]["policy"]["max_tokens"] = 4
    plain["eval"]["evaluators"]["even"] = {"_type": "avg_llm_latency"}  # it differs from attempt to attempt
    plain["trajectory_builders"]["b"] = {"_type": "rollbus_traj_builder", "num_generations": 2}
    plain["trainer_adapters"]["a"]["_type"] = "rollbus_trainer_adapter"
    bus = {"run_id": "by-nat", "data_dir": rollbus_section["data_dir"], "settings_file": "rollbus.yaml"}
    plain["trainers"]["t"] = {"_type": "rollbus_trainer", "bus": bus}
    plain["finetuning"]["num_epochs"] = 2
    (run.folder / "nat.yml").write_text(yaml.safe_dump(plain))
    environment = {**own_environment(), "PYTHONPATH": str(hide_art_plugin(run.folder / "site"))}
    command = [*tethered(), str(Path(ROLLBUS).with_name("nat")), "finetune", "--config_file", "nat.yml"]
    nat_process = subprocess.run(
        command, cwd=run.folder, env=environment, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert nat_process.returncode == 0, nat_process.stdout[-3000:] + nat_process.stderr[-6000:]
    assert [row["num_trajectories"] for row in run.rows()] == [EXAMPLES * 2] * 2
    steps = "SELECT uniqExact(step), sum(trained) FROM steps FINAL WHERE namespace = {namespace:String}"
    assert run.ask(steps, "by-nat") == [(2, EXAMPLES * 2 * 2)], nat_process.stdout[-3000:] + nat_process.stderr[-6000:]
