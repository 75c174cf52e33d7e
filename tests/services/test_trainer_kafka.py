"""The trainer as a process on a real broker: killed, stopped, fenced, and each batch still in exactly one step."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rollbus.trainer.report_kafka import list_steps, show_step, trainer_status
from rollbus.trainer.settings import MemoryBackendSettings
from tests.services.trainer_kafka import PATIENCE_S, TrainerWorld, ended

pytestmark = pytest.mark.services


@pytest.fixture
async def world(kafka: str, namespace: str, tmp_path: Path) -> AsyncIterator[TrainerWorld]:
    world = TrainerWorld(kafka, namespace, MemoryBackendSettings(type="memory", folder=tmp_path))
    await world.open()
    yield world
    await world.close()


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


async def test_a_stopped_trainer_ends_clean_and_the_next_goes_on(world: TrainerWorld, tmp_path: Path) -> None:
    await world.add_batches(2)
    world.backend = MemoryBackendSettings(type="memory", folder=tmp_path, step_s=0.5)
    first = await world.start()
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
