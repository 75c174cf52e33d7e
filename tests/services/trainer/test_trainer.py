"""The trainer as a process on a real broker: killed, stopped, fenced, and each batch still in exactly one step."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.records.steps import PolicyVersion
from rollbus.schemas.topics import EVALUATIONS
from rollbus.trainer.operate.policy_on_log import (
    compare_policies,
    evaluate_policy,
    list_policy_versions,
    promote_policy,
    roll_back_policy,
    show_policy_version,
)
from rollbus.trainer.operate.publishing import publish_evaluation
from rollbus.trainer.operate.report import list_steps, show_step, trainer_status
from rollbus.trainer.settings import MemoryBackendSettings, ValidationSettings
from rollbus.trainer.validation.agents import EvaluationContext, EvaluationTask
from rollbus.trainer.validation.evaluation import build_evaluation
from tests.builders import START_MS
from tests.services.trainer.kafka import PATIENCE_S, TrainerWorld, ended

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


async def test_a_trainer_killed_where_it_closes_one_step_and_opens_the_next_trains_each_batch_once(
    world: TrainerWorld, tmp_path: Path
) -> None:
    world.backend = MemoryBackendSettings(type="memory", folder=tmp_path, step_s=0.5)
    await world.add_batches(5)
    for side in ("between", "inside", "after"):
        status, errors = await ended(await world.start(f"{side} StepCompleted+StepStarted"))
        assert status == -signal.SIGKILL, errors
    await world.start()
    await world.wait_for_steps(5)
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
    assert "never retrieved" not in errors
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
    listed = await asyncio.to_thread(list_policy_versions, world.settings())
    assert [(each.version, each.parent, each.state) for each in listed] == [
        (0, None, "served"),
        (1, 0, "serving"),
        (2, 1, "rolled_back"),
        (3, 1, "served"),
    ]
    assert [(each.is_serving, each.is_head) for each in listed][1::2] == [(True, False), (False, True)]
    shown = await asyncio.to_thread(show_policy_version, world.settings(), 1)
    assert [type(each).__name__ for each in shown] == ["StepStarted", "StepCompleted", *["PolicyVersion"] * 3]
    reasons = [each.reason for each in shown if isinstance(each, PolicyVersion)]
    assert reasons == [None, "a bad reward", "the older one is better"]
    with pytest.raises(ConfigurationError, match="model 'agent' has no version 9"):
        await asyncio.to_thread(show_policy_version, world.settings(), 9)


async def test_an_evaluation_is_on_its_topic(world: TrainerWorld) -> None:
    measured = build_evaluation({"win": [1.0, 0.0]}, model="agent", policy_version=0, name="held-out", now_ms=START_MS)
    await publish_evaluation(world.connection, world.namespace, measured)
    assert list(await world.records(EVALUATIONS)) == [measured]


def play(task: EvaluationTask, context: EvaluationContext) -> dict[str, float]:
    """The agent of the test below: every version after the base wins every game."""
    return {"win": float(not context.model.endswith("@0"))}


async def test_versions_are_measured_beside_training_listed_compared_and_measured_by_hand(world: TrainerWorld) -> None:
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
    assert {each.version: [found.metrics["win"] for found in each.evaluations] for each in listed} == {
        0: [0.0],
        1: [],
        2: [1.0],
        3: [1.0],
    }
    base = await asyncio.to_thread(show_policy_version, world.settings(), 0)
    assert [type(each).__name__ for each in base] == ["PolicyVersion", "Evaluation"]
    compared = await asyncio.to_thread(compare_policies, world.settings(), 0, 3)
    low, value, high = compared["held-out: win"]
    assert (value, high) == (1.0, 1.0)
    assert 0.7 < low < 1.0
    with pytest.raises(ConfigurationError, match="no evaluation of the same set"):
        await asyncio.to_thread(compare_policies, world.settings(), 0, 1)
