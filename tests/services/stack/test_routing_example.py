"""The example whose verdicts come late, by the commands of its docstring: a copied folder, `rollbus up`, SmolLM2."""

import ast
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from rollbus.consumers.clickhouse.questions.saved import ask
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from rollbus.local.process.ports import find_free_port
from rollbus.local.process.tether import tethered
from rollbus.schemas.credentials import PASSWORD, read_secret
from rollbus.schemas.errors import RejectedError
from tests.installs import own_environment, run
from tests.waiting import wait_until

pytestmark = [pytest.mark.services, pytest.mark.timeout(1200)]  # on busy cores two steps take minutes

EXAMPLE = Path(__file__).parents[3] / "examples" / "routing"
SAID = (ast.get_docstring(ast.parse((EXAMPLE / "desk.py").read_text())) or "").splitlines()
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


@dataclass(slots=True)
class Reader:
    """Someone who copied the example into a folder, and does what its docstring says."""

    folder: Path
    shell: dict[str, str]

    def run(self, line: str, *more: str) -> str:
        return run(*words_of(line), *more, cwd=self.folder, check=True, **self.shell).stdout

    @contextmanager
    def started(self, line: str, *more: str) -> Iterator[None]:
        """Keep a part running as in a terminal of its own, until Ctrl-C there; show its log where the test fails."""
        path = self.folder / ("-".join([*line.split()[:2], *more]) + ".log")
        with path.open("ab") as log:
            process = subprocess.Popen(
                [*tethered(), *words_of(line), *more],
                cwd=self.folder, env=own_environment() | self.shell, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            print(f"--- {path.name}: {process.returncode}\n{path.read_text()[-1500:]}")

    def read_seen(self) -> dict[str, tuple[int, int, int]]:
        port, secrets = int(self.shell["ROLLBUS_STACK__CLICKHOUSE_PORT"]), self.folder / ".rollbus" / "secrets"
        where = ClickHouseSettings.model_validate({"port": port, "password": read_secret(secrets, PASSWORD)})
        return {task: (turns, attempts, late) for task, turns, attempts, late in ask(where, SEEN, {}).rows}


def words_of(line: str) -> list[str]:
    """The words of a command of the docstring, its program the installed one."""
    assert any(each.startswith(f"    {line}") for each in SAID), f"desk.py does not say {line!r}"
    program, *words = line.split()
    return [str(Path(sys.executable).with_name(program)), *words]


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    shutil.copytree(EXAMPLE, folder := tmp_path / "desk", ignore=shutil.ignore_patterns("__pycache__"))
    settings = folder / "rollbus.yaml"
    settings.write_text(
        settings.read_text().replace("groups_per_step: 8", "groups_per_step: 2")
    )  # a quarter of the time
    names = ("kafka", "kafka_controller", "clickhouse", "art", "model")
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


def test_steps_are_made_of_tickets_whose_verdicts_came_late_and_look_ups_take_two_turns(reader: Reader) -> None:
    desk, found = reader.shell["DESK_URL"], dict[str, tuple[int, int, int]]()
    with ExitStack() as stack:
        for part in ("worker", "trainer", "sink"):
            stack.enter_context(reader.started(f"rollbus {part} run"))
        stack.enter_context(reader.started("uvicorn --factory desk:build_desk --port", desk.rpartition(":")[2]))
        stack.enter_context(reader.started("rollbus resample run desk:again --concurrency 256"))
        wait_until(lambda: is_served(f"{desk}/openapi.json"), "no desk")

        def find_both_tasks() -> bool:
            for task in ("routing", "orders"):  # a few at a time: so many as this machine, however busy, has time for
                reader.run("python customers.py", "--task", task, "--tickets", "6")
            with suppress(RejectedError):  # the sink has not made the tables yet
                found.update(reader.read_seen())
            return (
                found.keys() == {"routing", "orders"}
                and all(all(counts) for counts in found.values())
                and found["orders"][0] == 2
            )

        wait_until(find_both_tasks, "no step of tickets, or no look-up in two turns", within_s=900)
        assert "completed" in reader.run("rollbus trainer steps")
        assert "RewardReported" in reader.run("rollbus sql run lineage-of-step")


def is_served(url: str) -> bool:
    try:
        return httpx.get(url).is_success
    except httpx.TransportError:
        return False
