"""One configuration, trained by the toolkit's own ART plugin and by ours, on an art-server from the same weights.

Theirs is what `nat finetune` runs, with the client of ART 0.5.17, the last release that has what the plugin calls; ours
is `rollbus finetune` on a real broker. Each attempt asks with a seed of its own, so that both get the same answers. It
is here for its length: the toolkit is imported twice, and its adapter looks at a job every ten seconds.
"""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import yaml

from rollbus.consumers.clickhouse.questions.saved_questions import ask
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from rollbus.local.process.tether import tethered
from rollbus.stack_settings import HOST
from tests.console import ROLLBUS
from tests.finetuning import art_adapter, art_builder, configuration
from tests.installs import own_environment
from tests.services.art.fixtures import MODEL, ArtServer, Launcher, art_base_model, art_launcher
from tests.services.art.releases import environment_of
from tests.services.conftest import clickhouse
from tests.services.settings_file import write_settings
from tests.web import serve

__all__ = ["art_base_model", "art_launcher", "clickhouse"]

pytestmark = [pytest.mark.services, pytest.mark.faults, pytest.mark.timeout(900)]

WORKFLOW = Path(__file__).with_name("seeded_workflow.py")
EXAMPLES, HELD_OUT, GENERATIONS, EPOCHS = 6, 3, 4, 3
THEIR_HEALTH_PORT = 8000
"""Where their adapter asks for health, whatever is configured; any answer is good."""
THEIR_RATE = 5e-5
"""They train at this rate, whatever is configured."""
THEIR_PROGRAM = """
from pathlib import Path
from nat.data_models.finetuning import FinetuneRunConfig
from nat.finetuning.finetuning_runtime import run_finetuning_sync
run_finetuning_sync(
    FinetuneRunConfig(config_file=Path("finetune.yml"), validation_dataset="held_out.json", validation_interval=1)
)
"""
"""The command itself ends in its first evaluation (`tests/nemo/test_side_by_side.py`), so its runtime is called."""
OWN_TO_EACH = ("timestamp", "run_id")
TRAINING_PROGRAM = """
    SELECT s.step, t.example_id, m.reward
    FROM step_members AS s FINAL
    INNER JOIN group_members AS m FINAL ON s.namespace = m.namespace AND s.trajectory_id = m.trajectory_id
    INNER JOIN trajectories AS t FINAL ON s.namespace = t.namespace AND s.trajectory_id = t.trajectory_id
    WHERE s.namespace = {namespace:String} AND s.fate = 'trained'
    ORDER BY s.step, m.reward
"""

Groups = list[dict[str, list[float]]]
"""Of each step: the rewards that were trained, in order, by example."""


def test_both_plugins_train_the_same_groups_and_write_the_same_files(
    kafka: str, clickhouse: tuple[str, int], art_launcher: Launcher, art_base_model: Path, tmp_path: Path
) -> None:
    site = install_toolkit(tmp_path / "site")
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    with serving_art(art_launcher, art_base_model, theirs) as art, answering(THEIR_HEALTH_PORT):
        finetune((sys.executable, "-c", THEIR_PROGRAM), theirs, art, environment_of("0.5.17", site))
        trained_by_them = groups_of_their_client(theirs)
    with serving_art(art_launcher, art_base_model, ours) as art:
        host, port = clickhouse
        write_settings(ours, kafka, clickhouse, "side_by_side")
        given = ("--config_file", "finetune.yml", "-o", "rollbus.run_id", "ours")
        validation = ("--validation_dataset", "held_out.json", "--validation_interval", "1")
        command = (ROLLBUS, "--config", "rollbus.yaml", "finetune", *given, *validation)
        finetune(command, ours, art, {**own_environment(), "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"})
        trained_here = groups_on_the_ledger(ClickHouseSettings(host=host, port=port, database="side_by_side"))

    assert len(trained_by_them) == EPOCHS
    assert trained_here == trained_by_them
    assert 0 < len(trained_here[0]) < len(trained_here[-1]) <= EXAMPLES, "the curriculum grew"
    for name in ("training_metrics.jsonl", "reward_history.json", "curriculum_state.json"):
        assert_same_rows(rows_of(ours / "output" / name), rows_of(theirs / "output" / name), name)
    *validations, after_the_last = rows_of(ours / "output" / "validation_history.json")
    assert_same_rows(validations, rows_of(theirs / "output" / "validation_history.json"), "validation_history.json")
    assert after_the_last["epoch"] == EPOCHS
    assert {path.name for path in (theirs / "output").iterdir()} <= {path.name for path in (ours / "output").iterdir()}


def assert_same_rows(our_rows: Sequence[dict[str, Any]], their_rows: Sequence[dict[str, Any]], name: str) -> None:
    """Each row of theirs is one of ours, which may have more fields."""
    for ours, theirs in zip(our_rows, their_rows, strict=True):
        values = dict(flat_values(ours))
        for key, value in flat_values(theirs):
            assert key in OWN_TO_EACH or values[key] == pytest.approx(value, abs=1e-12), (name, key)


def flat_values(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what is in a row, also in its sections and lists, by its place."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from flat_values(inner, f"{place}.{key}" if place else str(key))
    else:
        yield place, value


def rows_of(path: Path) -> list[dict[str, Any]]:
    text = path.read_text()
    content = [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else json.loads(text)
    return content if isinstance(content, list) else [content]


def groups_of_their_client(folder: Path) -> Groups:
    """Return what ART's client wrote down of each step: it names no example, so that the question stands for it."""
    steps: Groups = []
    for path in sorted(folder.rglob("trajectories/train/*.parquet")):
        groups: dict[str, list[float]] = {}
        for row in pyarrow.parquet.read_table(path).to_pylist():
            example = str(row["messages"][0]["content"]).removeprefix("choose ")
            groups.setdefault(example, []).append(row["reward"])
        steps.append({name: sorted(rewards) for name, rewards in groups.items()})
    return steps


def groups_on_the_ledger(database: ClickHouseSettings) -> Groups:
    steps: dict[int, dict[str, list[float]]] = {}
    for step, example, reward in ask(database, TRAINING_PROGRAM, {"namespace": "ours."}).rows:
        steps.setdefault(step, {}).setdefault(example, []).append(reward)
    return [groups for _, groups in sorted(steps.items())]


def install_toolkit(site: Path) -> Path:
    """Return a folder with the workflow as a package that the toolkit finds."""
    (about := site / f"{WORKFLOW.stem}-1.dist-info").mkdir(parents=True)
    shutil.copy(WORKFLOW, site)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {WORKFLOW.stem}\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[nat.components]\n{WORKFLOW.stem} = {WORKFLOW.stem}\n")
    return site


@contextmanager
def serving_art(launcher: Launcher, base_model: Path, folder: Path) -> Iterator[ArtServer]:
    folder.mkdir()
    server = ArtServer(launcher, base_model, folder / "art")
    server.start()
    try:
        yield server
    finally:
        server.stop(signal.SIGKILL)


@contextmanager
def answering(port: int) -> Iterator[None]:
    """Answer every request with 501; where the port is taken, another answers."""
    try:
        server = ThreadingHTTPServer((HOST, port), BaseHTTPRequestHandler)
    except OSError:
        yield
        return
    with serve(server):
        yield


def finetune(command: Sequence[str], folder: Path, art: ArtServer, environment: Mapping[str, str]) -> None:
    """Run the configuration to its end."""
    for name, count in (("train", EXAMPLES), ("held_out", HELD_OUT)):
        examples = [{"id": f"{name}-{n}", "question": f"choose {name}-{n}", "answer": ""} for n in range(count)]
        (folder / f"{name}.json").write_text(json.dumps(examples))
    (folder / "finetune.yml").write_text(yaml.safe_dump(document(art)))
    process = subprocess.run(
        [*tethered(), *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
    )
    (folder / "finetune.log").write_text(process.stdout + process.stderr)
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-6000:]


def document(art: ArtServer) -> dict[str, Any]:
    return configuration(
        art.model_url,
        llm={
            "model_name": MODEL,
            "temperature": 1.0,
            "logprobs": True,
            "extra_body": {"return_tokens_as_token_ids": True},
        },
        workflow="seeded",
        evaluators={"checksum": {"_type": "checksum"}},
        dataset="train.json",
        builder=art_builder(GENERATIONS),
        adapter=art_adapter(art.control_port, MODEL, learning_rate=THEIR_RATE),
        concurrency=8,
        curriculum_learning={"enabled": True, "initial_percentile": 0.3, "expansion_interval": 2},
        num_epochs=EPOCHS,
    )
