"""The trainer as a process on a real broker: killed, stopped, fenced, and each batch still in exactly one step."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rollbus.schemas.groups import StepOutcome, TrainingBatch
from rollbus.schemas.steps import PolicyVersion, StepCompleted
from rollbus.schemas.topics import BATCHES, POLICY_VERSIONS, RUN_LOG, TRAINING_STEPS, TRAJECTORIES
from rollbus.trainer.backends.memory import MemoryBackend
from rollbus.trainer.report_kafka import list_steps, show_step, trainer_status
from rollbus.trainer.settings import MemoryBackendSettings, TrainerSettings
from tests.builders import make_group, make_member
from tests.services.trainer_kafka import KafkaWorld
from tests.trainer.scenario import make_batch, make_payload

pytestmark = pytest.mark.services

PATIENCE_S = 60.0
"""Only reached where something is wrong."""


class TrainerWorld(KafkaWorld):
    """A namespace, and trainer processes in it."""

    def __init__(self, bootstrap_servers: str, namespace: str, folder: Path) -> None:
        super().__init__(bootstrap_servers, namespace)
        self.folder = folder
        self.processes: list[asyncio.subprocess.Process] = []
        self.batches: list[TrainingBatch] = []

    def settings(self, *, step_s: float = 0.0) -> TrainerSettings:
        return TrainerSettings(
            kafka=self.connection,
            namespace=self.namespace,
            backend=MemoryBackendSettings(type="memory", folder=self.folder, step_s=step_s),
        )

    async def start(self, die_at: str = "", **settings: Any) -> asyncio.subprocess.Process:
        """Start a trainer process."""
        arguments = ("-m", "tests.services.trainer_process", self.settings(**settings).model_dump_json(), die_at)
        process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, stderr=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2]
        )
        self.processes.append(process)
        return process

    async def add_batches(self, count: int) -> None:
        """Write batches of one group of three."""
        for number in range(len(self.batches), len(self.batches) + count):
            payloads = [make_payload(f"b{number}-{index}", seed=10 * number + index) for index in range(3)]
            locations = await self.append(TRAJECTORIES, f"hint-{number}", *payloads)
            members = tuple(
                make_member(f"b{number}-{index}", reward, advantage=reward - 2 / 3, location=location)
                for index, (reward, location) in enumerate(zip((0.0, 1.0, 1.0), locations, strict=True))
            )
            self.batches.append(make_batch(number, [make_group(f"b{number}", (0.0, 1.0, 1.0), members=members)]))
            await self.append(BATCHES, "main", self.batches[-1])

    async def steps(self) -> list[StepCompleted]:
        return [each for each in await self.records(TRAINING_STEPS) if isinstance(each, StepCompleted)]

    async def wait_for_steps(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(await self.steps()) < count:  # noqa: ASYNC110 - another process writes them
                await asyncio.sleep(0.1)

    async def check(self) -> None:
        """Each batch in one step, each step with its version and its outcome, the weights as if undisturbed."""
        steps = await self.steps()
        assert [(step.step, step.batch_hash) for step in steps] == [
            (number, batch.batch_hash) for number, batch in enumerate(self.batches, 1)
        ]
        versions = [each.version for each in await self.records(POLICY_VERSIONS) if isinstance(each, PolicyVersion)]
        assert versions == list(range(len(self.batches) + 1))
        outcomes = [each.batch_number for each in await self.records(RUN_LOG) if isinstance(each, StepOutcome)]
        assert outcomes == list(range(len(self.batches)))
        backend = MemoryBackend(folder=self.folder)
        assert [each.version for each in (await backend.versions()).known] == versions


@pytest.fixture
async def world(kafka: str, namespace: str, tmp_path: Path) -> AsyncIterator[TrainerWorld]:
    world = TrainerWorld(kafka, namespace, tmp_path)
    await world.open()
    yield world
    for process in world.processes:
        if process.returncode is None:
            process.kill()
        await process.communicate()
    await world.close()


async def ended(process: asyncio.subprocess.Process) -> tuple[int, str]:
    """Return exit status and what it wrote."""
    async with asyncio.timeout(PATIENCE_S):
        _, errors = await process.communicate()
    return process.returncode or 0, errors.decode()


async def test_a_trainer_killed_at_any_side_of_its_transaction_trains_each_batch_once(world: TrainerWorld) -> None:
    await world.add_batches(3)
    for die_at in ("before StepCompleted", "inside StepCompleted", "after StepCompleted", "after StepStarted"):
        status, errors = await ended(await world.start(die_at))
        assert status == -signal.SIGKILL, errors
    last = await world.start()
    await world.add_batches(1)
    await world.wait_for_steps(4)
    last.send_signal(signal.SIGTERM)
    status, errors = await ended(last)
    assert status == 0, errors
    await world.check()


async def test_a_second_trainer_fences_the_first_which_ends_and_says_so(world: TrainerWorld) -> None:
    await world.add_batches(1)
    first = await world.start()
    await world.wait_for_steps(1)
    second = await world.start()
    async with asyncio.timeout(PATIENCE_S):
        while b"trainer open" not in await second.stderr.readline():  # type: ignore[union-attr]
            pass
    await world.add_batches(2)
    status, errors = await ended(first)
    assert status == 1
    assert "FencedError" in errors
    assert "a newer trainer of this model has taken over" in errors
    await world.wait_for_steps(3)
    await world.check()


async def test_a_stopped_trainer_ends_clean_and_the_next_goes_on(world: TrainerWorld) -> None:
    await world.add_batches(2)
    first = await world.start(step_s=0.5)
    await world.wait_for_steps(1)
    first.send_signal(signal.SIGTERM)
    status, errors = await ended(first)
    assert status == 0, errors
    await world.start()
    await world.wait_for_steps(2)
    await world.check()


async def test_status_steps_and_show_tell_what_the_log_says(world: TrainerWorld) -> None:
    await world.add_batches(2)
    await world.start()
    await world.wait_for_steps(2)
    status = await asyncio.to_thread(trainer_status, world.settings())
    assert (status.closed_steps, status.head, status.serving, status.open_step) == (2, 2, 2, None)
    assert [each.step for each in await asyncio.to_thread(list_steps, world.settings(), last=1)] == [2]
    shown = await asyncio.to_thread(show_step, world.settings(), 2)
    assert [type(each).__name__ for each in shown] == ["StepStarted", "StepCompleted", "PolicyVersion"]
