"""The example whose verdicts come late, by the commands of its docstring: a copied folder, `rollbus up`, SmolLM2."""

import ast
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from rollbus.consumers.clickhouse.questions.saved_questions import ask
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from rollbus.local.process.ports import find_free_port
from rollbus.local.process.tether import tethered
from rollbus.runtime.credentials import PASSWORD, read_secret
from rollbus.schemas.errors import RejectedError
from tests.installs import own_environment, run
from tests.waiting import wait_until

pytestmark = [pytest.mark.services, pytest.mark.walks, pytest.mark.timeout(1200)]  # on busy cores a step takes minutes

EXAMPLE = Path(__file__).parents[3] / "examples" / "routing"
PAGE_LINES = (ast.get_docstring(ast.parse((EXAMPLE / "desk.py").read_text())) or "").splitlines()
SEEN = """
    WITH late AS (
        SELECT rewards.episode_id AS episode_id
        FROM rewards JOIN trajectories ON rewards.episode_id = trajectories.episode_id
        WHERE rewards.alias != '' AND rewards.occurred_at > trajectories.ended_at
    )
    SELECT task, max(turns), countIf(resampled), countIf(NOT resampled AND episode_id IN (SELECT episode_id FROM late))
    FROM trajectories FINAL
    WHERE task = 'orders' OR trajectory_id IN (SELECT trajectory_id FROM step_members WHERE fate = 'trained')
    GROUP BY task
"""
"""Of what steps were made of, and of all look-ups, which take long to train: turns, further attempts, and attempts of
traffic with a late verdict by order number."""
CHEAPER = {
    "groups_per_step: 8": "groups_per_step: 2",
    "group_size: 8 ": "group_size: 3 ",
    "min_group_size: 4\n": "min_group_size: 2\n",
    "max_off_policy_steps: 2}": "max_off_policy_steps: 8}",
}
"""A step in a tenth of the time, and also of what was sampled before the last ones."""
END_S = 120.0


@dataclass(slots=True)
class Reader:
    """Someone who copied the example into a folder, and does what its docstring says."""

    folder: Path
    shell: dict[str, str]

    def run(self, line: str) -> str:
        return run(*words_of(line), cwd=self.folder, check=True, **self.shell).stdout

    @contextmanager
    def running(self, *lines: str) -> Iterator[None]:
        """Keep each command running in a terminal of its own, until Ctrl-C there; show logs where a test fails."""
        parts: dict[Path, subprocess.Popen[bytes]] = {}
        try:
            for line in lines:
                path = self.folder / f"{line.replace(' ', '-')}.log"
                with path.open("ab") as log:
                    parts[path] = subprocess.Popen(
                        [*tethered(), *words_of(line)],
                        cwd=self.folder, env=own_environment() | self.shell, stdout=log, stderr=log,
                    )  # fmt: skip
            yield
        finally:
            for process in parts.values():
                process.send_signal(signal.SIGINT)
            deadline = time.monotonic() + END_S
            for path, process in parts.items():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
                process.kill()
                process.wait()
                print(f"--- {path.name}: {process.returncode}\n{path.read_text()[-1500:]}")

    def read_seen(self) -> dict[str, tuple[int, int, int]]:
        port, secrets = int(self.shell["ROLLBUS_STACK__CLICKHOUSE_PORT"]), self.folder / ".rollbus" / "secrets"
        where = ClickHouseSettings.model_validate({"port": port, "password": read_secret(secrets, PASSWORD)})
        return {task: (turns, attempts, late) for task, turns, attempts, late in ask(where, SEEN, {}).rows}


def words_of(line: str) -> list[str]:
    """The words of a command of the docstring, its program installed; it may have more options, another port."""
    commands = [
        page_line.split("#")[0].strip().removesuffix("8080") for page_line in PAGE_LINES if page_line.startswith("    ")
    ]
    assert any(line.startswith(command) for command in commands), f"desk.py does not say {line!r}"
    program, *words = line.split()
    return [str(Path(sys.executable).with_name(program)), *words]


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    shutil.copytree(EXAMPLE, folder := tmp_path / "desk", ignore=shutil.ignore_patterns("__pycache__"))
    settings = folder / "rollbus.yaml"
    for line, cheaper in CHEAPER.items():
        text = settings.read_text()
        assert line in text
        settings.write_text(text.replace(line, cheaper))
    names = ("kafka", "clickhouse", "art", "model")
    ports = {name: find_free_port() for name in (*names, "desk")}
    shell = {f"ROLLBUS_STACK__{name.upper()}_PORT": str(ports[name]) for name in names} | {
        "ROLLBUS_CONFIG": "rollbus.yaml",
        "KAFKA_BOOTSTRAP_SERVERS": f"127.0.0.1:{ports['kafka']}",
        "OPENAI_BASE_URL": f"http://127.0.0.1:{ports['model']}/v1",
        "DESK_URL": f"http://127.0.0.1:{ports['desk']}",
    }
    reader = Reader(folder, shell)
    reader.run("rollbus model fetch smollm2")
    try:
        reader.run("rollbus up")
        reader.run("rollbus topics create")
        yield reader
    finally:
        run(Path(sys.executable).with_name("rollbus"), "down", cwd=folder, check=True, **shell)


def test_steps_train_tickets_with_late_verdicts_and_two_turn_look_ups(reader: Reader) -> None:
    desk, counts_by_task = reader.shell["DESK_URL"], dict[str, tuple[int, int, int]]()
    parts = (
        "rollbus worker run",
        "rollbus trainer run",
        "rollbus sink run",
        f"uvicorn --factory desk:build_desk --port {desk.rpartition(':')[2]}",
        "rollbus resample run desk:again --concurrency 256",
    )
    customers = ("python customers.py --rate 0.2", "python customers.py --task orders --rate 0.05")

    def find_both_tasks() -> bool:
        with suppress(RejectedError):  # the sink has not made the tables yet
            counts_by_task.update(reader.read_seen())
        return (
            counts_by_task.keys() == {"routing", "orders"}
            and all(map(all, counts_by_task.values()))
            and counts_by_task["orders"][0] == 2
        )

    with reader.running(*parts):
        wait_until(lambda: is_served(f"{desk}/openapi.json"), "no desk", within_s=300)
        with reader.running(*customers):
            wait_until(find_both_tasks, "no step of tickets, or no look-up in two turns", within_s=600)
        assert "completed" in reader.run("rollbus trainer steps")
        assert "RewardReported" in reader.run("rollbus sql run events-of-step")
        assert "in force" in reader.run("rollbus trainer rewards")


def is_served(url: str) -> bool:
    try:
        return httpx.get(url).is_success
    except httpx.TransportError:
        return False
