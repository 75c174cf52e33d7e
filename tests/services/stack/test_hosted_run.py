"""A run that production's settings file hosts, on the real stack: its worker and sink are production's."""

import asyncio
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from rollbus.consumers.clickhouse.questions.saved_questions import ask
from rollbus.health.reading import read_health
from rollbus.local.process.tether import tethered
from rollbus.runtime.kafka.connection import KafkaConnection
from tests.console import ROLLBUS
from tests.installs import own_environment
from tests.services.art.fixtures import ArtServer
from tests.services.stack.test_finetune import DEADLINE_S, EXAMPLES, GENERATIONS, RUN, Run, run

__all__ = ["run"]

pytestmark = [pytest.mark.services, pytest.mark.timeout(900)]


def test_a_run_of_productions_settings_file_trains_by_its_worker_and_sink(
    run: Run, own_art_server: ArtServer, kafka: str, namespace: str
) -> None:
    path = run.folder / "rollbus.yaml"
    command = [ROLLBUS, "--config", "rollbus.yaml", "finetune", "--config_file", "finetune.yml", "--check"]
    check = subprocess.run(command, cwd=run.folder, env=own_environment(), capture_output=True, text=True, check=True)
    section = yaml.safe_load(check.stdout.partition("start its worker again:\n")[2])
    production = yaml.safe_load(path.read_text()) | {
        "namespace": namespace,
        "assembly": {"target_functions": ["<workflow>"]},
        "trainer": {
            "backend": {"type": "art-server", "url": f"http://127.0.0.1:{own_art_server.control_port}"},
            "train": {"learning_rate": 1e-2},
        },
        "runs": [{"run_id": "main", "model": "another"}, *section],
    }
    path.write_text(yaml.safe_dump(production))
    with running(run.folder, "worker", "sink"):
        wait_for_the_run_on_a_worker(kafka, namespace)
        assert run.start("-o", "finetuning.num_epochs", "1").wait(DEADLINE_S) == 0, run.log()
        logs = {path.stem for path in (run.folder / "state" / RUN / "logs").iterdir()}
        assert logs == {"trainer"}, "the worker and the sink are production's"
        statement = (
            "SELECT sum(trained) FROM steps FINAL WHERE namespace = {namespace:String} AND run_id = {run:String}"
        )
        deadline, trained = time.monotonic() + DEADLINE_S, 0
        while trained != EXAMPLES * GENERATIONS:
            assert time.monotonic() < deadline, trained
            time.sleep(0.2)
            ((trained,),) = ask(run.clickhouse, statement, {"namespace": namespace, "run": RUN}).rows


@contextmanager
def running(folder: Path, *nouns: str) -> Iterator[None]:
    """Run parts of production, as its operator starts them."""
    rollbus = (ROLLBUS, "--config", "rollbus.yaml")
    subprocess.run([*rollbus, "topics", "create"], cwd=folder, env=own_environment(), check=True)
    parts = []
    for noun in nouns:
        with (folder / f"{noun}.log").open("ab") as log:
            part = [*tethered(), *rollbus, noun, "run"]
            parts.append(subprocess.Popen(part, cwd=folder, stdout=log, stderr=log, env=own_environment()))
    try:
        yield
    finally:
        for process in parts:
            process.terminate()
            process.wait(120)


def wait_for_the_run_on_a_worker(kafka: str, namespace: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        picture = asyncio.run(read_health(KafkaConnection(bootstrap_servers=kafka), namespace))
        kinds = {process.kind for process in picture.processes}
        places = {place for process in picture.processes for place in process.holds}
        if f"grouping.{RUN}[0]" in places and "sink" in kinds:
            return
        assert time.monotonic() < deadline, picture.processes
