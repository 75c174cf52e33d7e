"""The trainer as a process on a real broker: killed, stopped, fenced, and each batch still in exactly one step."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.topics import EVALUATIONS, POLICY_VERSIONS
from rollbus.trainer.operate.policy_on_log import (
    compare_policies,
    evaluate_policy,
    list_policy_versions,
    promote_policy,
    roll_back_policy,
    show_policy_version,
)
from rollbus.trainer.settings import MemoryBackendSettings
from rollbus.trainer.validation.agents import EvaluationContext, EvaluationTask
from rollbus.trainer.validation.settings import ValidationSettings
from tests.services.trainer.kafka import PATIENCE_S, TrainerWorld, ended

pytestmark = pytest.mark.services


@pytest.fixture
async def world(kafka: str, namespace: str, tmp_path: Path) -> AsyncIterator[TrainerWorld]:
    world = TrainerWorld(kafka, namespace, MemoryBackendSettings(type="memory", folder=tmp_path))
    await world.open()
    yield world
    await world.close()


async def reach(process: asyncio.subprocess.Process, words: bytes) -> None:
    """Read what a process writes until it says this."""
    assert process.stderr is not None
    lines = list[bytes]()
    async with asyncio.timeout(PATIENCE_S):
        while not lines or words not in lines[-1]:
            lines.append(await process.stderr.readline())
            assert lines[-1], b"".join(lines).decode()


async def test_a_second_trainer_waits_until_the_first_has_ended(world: TrainerWorld) -> None:
    await world.add_batches(1)
    first = await world.start()
    await world.wait_for_steps(1)
    second = await world.start()
    await reach(second, b"waiting until it ends")
    await world.add_batches(1)
    await world.wait_for_steps(2)
    first.send_signal(signal.SIGTERM)
    assert (await ended(first))[0] == 0
    await reach(second, b"trainer open")
    await world.add_batches(1)
    await world.wait_for_steps(3)
    await world.check()


async def test_a_second_trainer_that_waits_ends_with_a_signal(world: TrainerWorld) -> None:
    first = await world.start()
    await reach(first, b"trainer open")
    second = await world.start()
    await reach(second, b"waiting until it ends")
    second.send_signal(signal.SIGTERM)
    status, errors = await ended(second)
    assert status == 0, errors


@pytest.mark.parametrize("batches_meanwhile", [0, 2], ids=["while nothing comes", "in the middle of its work"])
async def test_a_trainer_resumed_after_a_freeze_ends_only_itself(world: TrainerWorld, batches_meanwhile: int) -> None:
    await world.add_batches(1)
    zombie = await world.start()
    await world.wait_for_steps(1)
    zombie.send_signal(signal.SIGSTOP)
    successor = await world.start()
    await reach(successor, b"trainer open")
    await world.add_batches(batches_meanwhile)
    zombie.send_signal(signal.SIGCONT)
    status, errors = await ended(zombie)
    assert (status, "FencedError" in errors) == (1, True), errors
    assert "a newer trainer of this model has taken over" in errors
    assert "never retrieved" not in errors
    await world.start()  # as a supervisor does: it waits
    await world.add_batches(2)
    await world.wait_for_steps(3 + batches_meanwhile)
    assert successor.returncode is None
    await world.check()


async def test_a_rollback_fences_the_trainer_and_the_next_one_goes_on_from_there(world: TrainerWorld) -> None:
    await world.add_batches(2)
    first = await world.start()
    await world.wait_for_steps(2)
    assert await asyncio.to_thread(roll_back_policy, world.settings(), 1, reason="a bad reward") == (2,)
    await world.add_batches(1)
    status, errors = await ended(first)
    assert (status, "FencedError" in errors) == (1, True)
    await world.start()
    await world.wait_for_steps(3)
    await asyncio.to_thread(promote_policy, world.settings(), 1, reason="the older one is better")
    assert [(step.base_version, step.policy_version) for step in await world.steps()] == [(0, 1), (1, 2), (1, 3)]
    versions = [record for record in await world.records(POLICY_VERSIONS) if record.version == 1]
    assert [version.reason for version in versions] == [None, "a bad reward", "the older one is better"]


def play(task: EvaluationTask, context: EvaluationContext) -> dict[str, float]:
    """The agent of the test below: every version after the base wins every game."""
    return {"win": float(not context.model.endswith("@0"))}


async def test_versions_are_measured_during_training_and_by_hand(world: TrainerWorld) -> None:
    world.validation = ValidationSettings(
        agent=f"{__name__}:play", episodes=20, interval_steps=2, base_url="http://127.0.0.1:1/v1"
    )
    await world.add_batches(3)
    process = await world.start()
    await world.wait_for_steps(3)
    async with asyncio.timeout(PATIENCE_S):
        while len(await world.records(EVALUATIONS)) < 2:  # noqa: ASYNC110 - another process writes them
            await asyncio.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    status, errors = await ended(process)
    assert status == 0, errors
    await asyncio.to_thread(evaluate_policy, world.settings(), 3)
    with pytest.raises(ConfigurationError, match="model 'agent' has no version 9; see `rollbus policy list`"):
        await asyncio.to_thread(evaluate_policy, world.settings(), 9)
    listed = await asyncio.to_thread(list_policy_versions, world.settings())
    assert {row.version: [evaluation.metrics["win"] for evaluation in row.evaluations] for row in listed} == {
        0: [0.0],
        1: [],
        2: [1.0],
        3: [1.0],
    }
    base = await asyncio.to_thread(show_policy_version, world.settings(), 0)
    assert [type(record).__name__ for record in base] == ["PolicyVersion", "Evaluation"]
    compared = await asyncio.to_thread(compare_policies, world.settings(), 0, 3)
    low, value, high = compared["held-out: win"]
    assert (value, high) == (1.0, 1.0)
    assert 0.7 < low < 1.0
    with pytest.raises(ConfigurationError, match="no evaluation of the same set"):
        await asyncio.to_thread(compare_policies, world.settings(), 0, 1)
