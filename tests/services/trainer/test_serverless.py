"""The trainer at W&B's serverless training, as a user starts it: it dies in a step, and each batch is still one job.

The service is the shipped fake, in a process of its own. Settings are those of docs/backends.md.
"""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from rollbus.local.process.ports import find_free_port
from rollbus.schemas.records.steps import StepFailed, StepStarted
from rollbus.schemas.topics import POLICY_VERSIONS, TRAINING_STEPS
from rollbus.stack_settings import HOST
from rollbus.trainer.backends.durable.journaled import JOURNAL_NAME
from rollbus.trainer.settings import ServerlessBackendSettings
from tests.services.art.fixtures import Launcher
from tests.services.stack.health_world import World, make_world
from tests.services.trainer.kafka import TrainerWorld
from tests.waiting import until_found

pytestmark = pytest.mark.services

KEY = "key"
STEPS, KILLED_STEP = 5, 3
MODEL = "agent"
PLACE = {"project": "tickets", "name": "agent-1", "base_model": "OpenPipe/Qwen3-14B-Instruct"}
CHECKPOINT = "wandb-artifact:///default-entity/tickets/agent-1:step"
FROM_CHECKPOINT = {"loss": 0.5}
"""What the fake's checkpoints say of a step."""
FROM_JOB = {"loss": 0.5, "grad_norm": 1.0, "service_entropy": 2.0, "gradient_steps": 3.0}
"""What its jobs say of one that trains three trajectories."""


@dataclass(frozen=True, slots=True)
class ServiceProcess:
    """The fake of W&B's service, which outlives a trainer."""

    control_url: str

    async def look(self) -> dict[str, Any]:
        """Return its address, its jobs and its checkpoints; nothing before it listens."""
        try:
            async with httpx.AsyncClient() as client:
                state: dict[str, Any] = (await client.get(self.control_url)).json()
                return state
        except httpx.ConnectError:
            return {}

    async def hold(self, *calls: str) -> None:
        """Let requests of these kinds wait for their answers, and no others."""
        async with httpx.AsyncClient() as client:
            (await client.put(f"{self.control_url}/held-calls", json=calls)).raise_for_status()


@pytest.fixture
def service(art_launcher: Launcher) -> Iterator[ServiceProcess]:
    port = find_free_port()
    process_id = art_launcher.begin_call("tests.services.trainer.serverless_process:serve", KEY, str(port))
    yield ServiceProcess(f"http://{HOST}:{port}")
    os.kill(process_id, signal.SIGKILL)


@pytest.fixture
async def backend(service: ServiceProcess, tmp_path: Path) -> ServerlessBackendSettings:
    state = await until_found(service.look, "the service does not listen")
    return ServerlessBackendSettings.model_validate({"type": "art-serverless", "url": state["url"], **PLACE})


@pytest.fixture
async def log(kafka: str, namespace: str, backend: ServerlessBackendSettings) -> AsyncIterator[TrainerWorld]:
    """The topics, and the batches that a worker would write."""
    world = TrainerWorld(kafka, namespace, backend)
    await world.open()
    yield world
    await world.close()


@pytest.fixture
def console(kafka: str, namespace: str, backend: ServerlessBackendSettings, tmp_path: Path) -> Iterator[World]:
    """The settings file, and the installed commands."""
    trainer = {"backend": backend.model_dump(mode="json", exclude_unset=True), "train": {"advantages": "art"}}
    runs = [{"run_id": "main", "model": MODEL}]
    without_clickhouse = HOST, find_free_port()
    with make_world(tmp_path, kafka, without_clickhouse, namespace, runs=runs, trainer=trainer) as world:
        yield world


def start_trainer(console: World) -> None:
    console.start("trainer", "trainer", "run", WANDB_API_KEY=KEY)


async def wait_for_third_job(console: World, service: ServiceProcess, journal: Path, newest_line: str) -> None:
    """Return when the service has the third batch, and the journal's newest line is of this kind."""

    async def is_there() -> bool:
        assert console.process_by_name["trainer"].poll() is None, console.log("trainer")
        is_sent = len((await service.look())["jobs"]) == KILLED_STEP
        return is_sent and read_newest_kind(journal) == newest_line

    await until_found(is_there, "the third batch is not sent")


def read_newest_kind(journal: Path) -> str:
    return str(json.loads(journal.read_text().splitlines()[-1])["kind"])


@pytest.mark.parametrize(
    ("held_call", "newest_line", "metrics"),
    [
        pytest.param("create_job", "sending", FROM_CHECKPOINT, id="before the id of its job has come"),
        pytest.param("list_events", "job", FROM_JOB, id="while it follows its job", marks=pytest.mark.faults),
    ],
)
async def test_a_trainer_killed_at_wandb_trains_each_batch_once(
    log: TrainerWorld,
    console: World,
    service: ServiceProcess,
    held_call: str,
    newest_line: str,
    metrics: dict[str, float],
) -> None:
    start_trainer(console)
    await log.add_batches(KILLED_STEP - 1)
    await log.wait_for_steps(KILLED_STEP - 1)
    await service.hold(held_call)
    await log.add_batches(STEPS - KILLED_STEP + 1)
    await wait_for_third_job(
        console, service, console.folder / ".rollbus" / "art" / "serverless" / MODEL / JOURNAL_NAME, newest_line
    )
    console.kill("trainer")
    await service.hold()
    start_trainer(console)
    await log.wait_for_steps(STEPS)
    await asyncio.to_thread(console.until, has_trained_all, f"a working trainer after {STEPS} steps")
    await asyncio.to_thread(console.end, "trainer")

    await check_service(service, log)
    await check_versions(log)
    steps = await log.check_log()
    for step in steps:
        expected = metrics if step.step == KILLED_STEP else FROM_JOB
        assert {name: step.metrics.get(name) for name in FROM_JOB} == {name: expected.get(name) for name in FROM_JOB}
        assert step.metrics["trajectories_trained"] == len(step.trained) == 3
        assert ("update_seconds" in step.metrics) == (step.step != KILLED_STEP), "its beginning died with the trainer"
    records = await log.records(TRAINING_STEPS)
    attempts = [(record.step, record.attempt) for record in records if isinstance(record, StepStarted)]
    assert attempts == [(1, 1), (2, 1), (3, 1), (3, 2), (4, 1), (5, 1)]
    assert not [record for record in records if isinstance(record, StepFailed)]


def has_trained_all(picture: dict[str, Any]) -> bool:
    """Whether `rollbus status` has all steps, one trainer that works, and nothing to complain of."""
    health = picture["health"]
    runs = [(run["run_id"], run["step"], run["version"], run["open_step"], run["failure"]) for run in health["runs"]]
    working = [process["positions"] for process in health["processes"] if process["state"] == "working"]
    is_done = runs == [("main", STEPS, STEPS, None, None)] and working == [{"step": STEPS, "version": STEPS}]
    return is_done and not health["problems"]


async def check_service(service: ServiceProcess, log: TrainerWorld) -> None:
    """Each batch is one job, in the order of the log, and each job is one checkpoint."""
    state = await service.look()
    batches = [[member.trajectory_id for group in batch.groups for member in group.members] for batch in log.batches]
    assert list(state["jobs"].values()) == batches
    assert state["trained_jobs"] == list(state["jobs"])
    assert state["steps"] == list(range(1, STEPS + 1))


async def check_versions(log: TrainerWorld) -> None:
    """The log has each version once, in order, with the name by which W&B's inference serves it."""
    versions = await log.records(POLICY_VERSIONS)
    assert [version.version for version in versions] == list(range(STEPS + 1))
    assert [version.checkpoint for version in versions] == [f"{CHECKPOINT}{step}" for step in range(STEPS + 1)]
    assert {version.state for version in versions} == {"serving"}
