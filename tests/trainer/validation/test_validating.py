"""Validation in the trainer's loop: which versions are measured, that training goes on, and what a crash costs."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.records.steps import Evaluation, StepCompleted
from rollbus.schemas.topics import EVALUATIONS, POLICY_VERSIONS, TRAINING_STEPS
from rollbus.trainer.loop.loop import Trainer
from rollbus.trainer.validation.agents import Agent, EvaluationContext, EvaluationTask, Metrics
from rollbus.trainer.validation.promotion import PromotionRule
from rollbus.trainer.validation.settings import ValidationSettings
from rollbus.trainer.validation.validating import Validation
from rollbus.trainer.validation.validation import ValidationSet
from tests.builders import START_MS
from tests.trainer.log_memory import MemoryLog
from tests.trainer.scenario import World


async def by_version(task: EvaluationTask, context: EvaluationContext) -> Metrics:
    """Every version wins as many of ten games as its number says."""
    version = int(context.model.partition("@")[2])
    return {"win": float(task.index < version), "reward": version + task.seed % 2}


def validation(
    agent: Agent = by_version, *, interval: int = 2, wait: bool = False, episodes: int = 10, **settings: Any
) -> Validation:
    return Validation(
        agent=agent,
        set=ValidationSet("held-out", episodes, seed=5),
        settings=ValidationSettings(
            agent="by_version",
            episodes=episodes,
            interval_steps=interval,
            wait=wait,
            **{"base_url": "http://127.0.0.1:1/v1", **settings},
        ),
        tries=1,
    )


def trainer(world: World, chosen: Validation, *, log: Any = None, **settings: Any) -> Trainer:
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(0)

    return Trainer(
        log or MemoryLog(world.broker, run_id="main", model="agent"),
        world.backend,
        world.settings.model_copy(update=settings),
        validation=chosen,
        clock_ms=lambda: START_MS,
        sleep=sleep,
    )


def measured(world: World) -> list[int]:
    return [record.policy_version for record in world.records(EVALUATIONS)]


@pytest.mark.parametrize("wait", [False, True])
async def test_every_version_at_the_interval_is_measured_once(wait: bool) -> None:
    world = World()
    world.add_batches(3)
    await trainer(world, validation(wait=wait)).run(until_idle=True)
    assert measured(world) == [0, 2]
    world.add_batches(2)
    await trainer(world, validation(wait=wait)).run(until_idle=True)
    assert measured(world) == [0, 2, 4]


async def test_the_record_carries_intervals_the_seed_and_what_was_asked() -> None:
    world = World()
    world.add_batches(2)
    await trainer(world, validation()).run(until_idle=True)
    evaluation = world.records(EVALUATIONS)[-1]
    assert isinstance(evaluation, Evaluation)
    assert (evaluation.name, evaluation.policy_version, evaluation.run_id, evaluation.episodes, evaluation.seed) == (
        "held-out",
        2,
        "main",
        10,
        5,
    )
    assert evaluation.set_hash == validation().set.content_hash
    assert evaluation.metrics["win_low"] < evaluation.metrics["win"] == 0.2 < evaluation.metrics["win_high"]


async def test_with_wait_no_step_starts_before_due_measurements() -> None:
    world = World()
    steps_seen: list[int] = []

    async def agent(task: EvaluationTask, context: EvaluationContext) -> Metrics:
        await asyncio.sleep(0.002)
        steps_seen.append(len(world.steps()))
        return {"win": 1.0}

    world.add_batches(4)
    await trainer(world, validation(agent, wait=True, episodes=1)).run(until_idle=True)
    assert steps_seen == [0, 2, 4]


async def test_without_wait_training_continues_for_one_interval_at_most() -> None:
    world, released = World(), asyncio.Event()

    async def agent(task: EvaluationTask, context: EvaluationContext) -> Metrics:
        await released.wait()
        return {"win": 1.0}

    world.add_batches(5)
    running = asyncio.create_task(trainer(world, validation(agent, episodes=1)).run(until_idle=True))
    while len(world.steps()) < 2:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.001)
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(world.steps()) == 2
    released.set()
    await running
    assert len(world.steps()) == 5
    assert measured(world) == [0, 2, 4]


async def test_a_stopped_evaluation_is_taken_up_by_the_next_trainer() -> None:
    world, hangs = World(), asyncio.Event()

    async def agent(task: EvaluationTask, context: EvaluationContext) -> Metrics:
        hangs.set()
        await asyncio.sleep(30)
        return {}

    world.add_batches(2)
    first = trainer(world, validation(agent))
    running = asyncio.create_task(first.run())
    await hangs.wait()
    first.stop()
    await running
    assert measured(world) == []
    await trainer(world, validation()).run(until_idle=True)
    assert measured(world)[-1] == 2


async def test_a_failing_agent_costs_its_measurement_and_not_the_training(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()

    async def agent(task: EvaluationTask, context: EvaluationContext) -> Any:
        if context.model == "agent@2":
            raise ValueError("a broken tool")
        return None if (context.model, task.index) == ("agent@4", 3) else {"win": 1.0}

    world.add_batches(4)
    await trainer(world, validation(agent)).run(until_idle=True)
    assert len(world.steps()) == 4
    assert measured(world) == [0]
    assert "version 2 is not measured" in caplog.text
    assert "a broken tool" in caplog.text
    assert "example '3': the agent returned None" in caplog.text


async def test_a_changed_validation_set_is_measured_again() -> None:
    world = World()
    world.add_batches(2)
    await trainer(world, validation()).run(until_idle=True)
    await trainer(world, validation(episodes=11)).run(until_idle=True)
    assert measured(world) == [0, 2, 2]
    assert len({record.evaluation_id for record in world.records(EVALUATIONS)}) == 3


async def test_a_candidate_is_served_once_its_own_validation_lets_it_through() -> None:
    world = World()
    world.add_batches(3)
    chosen, rule = validation(interval=1, wait=True), PromotionRule(evaluation="held-out", metric="win")
    await trainer(world, chosen, serve="after_evaluation", promote_if=rule).run(until_idle=True)
    served = [(record.version, record.state) for record in world.records(POLICY_VERSIONS) if record.state == "serving"]
    assert served == [(0, "serving"), (1, "serving"), (2, "serving"), (3, "serving")]
    assert (await world.backend.versions()).serving == 3


async def test_a_rule_with_certainty_waits_for_a_difference_beyond_chance() -> None:
    world = World()
    world.add_batches(5)
    chosen, rule = validation(interval=1, wait=True), PromotionRule(evaluation="held-out", metric="win", certain=True)
    await trainer(world, chosen, serve="after_evaluation", promote_if=rule).run(until_idle=True)
    served = [record.version for record in world.records(POLICY_VERSIONS) if record.state == "serving"]
    assert served[:2] == [0, 4], "4 of 10 against 0 of 10 is the first whose interval excludes 0"


async def test_validation_without_a_model_to_ask_is_a_configuration_error() -> None:
    world = World()
    world.add_batches(1)
    with pytest.raises(ConfigurationError, match="serves no model to ask"):
        await trainer(world, validation(base_url=None)).run(until_idle=True)


async def test_evaluations_are_written_between_steps_and_never_inside_one() -> None:
    world = World()
    world.add_batches(4)
    order: list[str] = []
    publish: Callable[..., Any] = MemoryLog.publish

    class Watched(MemoryLog):
        async def publish(self, publications: Any, **options: Any) -> Any:
            written = await publish(self, publications, **options)
            order.extend(type(publication.record).__name__ for publication in written)
            return written

    log = Watched(world.broker, run_id="main", model="agent")
    await trainer(world, validation(), log=log).run(until_idle=True)
    for index, name in enumerate(order):
        if name == Evaluation.__name__:
            before = [
                earlier_name
                for earlier_name in order[:index]
                if earlier_name in ("StepStarted", StepCompleted.__name__)
            ]
            assert not before or before[-1] == StepCompleted.__name__
    assert order.count(Evaluation.__name__) == 2 * 3, "each for those who compare versions, and for delivery"
    assert len(world.records(TRAINING_STEPS)) == 8


async def test_an_endpoint_away_for_a_moment_does_not_end_promotion() -> None:
    """The version that serves is what candidates must beat: without its measurement none would ever be served."""
    world, away = World(), True

    async def agent(task: EvaluationTask, context: EvaluationContext) -> Metrics:
        nonlocal away
        if away:
            away = False
            raise ConnectionError("the server restarts")
        return await by_version(task, context)

    world.add_batches(3)
    chosen, rule = validation(agent, interval=1, wait=True), PromotionRule(evaluation="held-out", metric="win")
    await trainer(world, chosen, serve="after_evaluation", promote_if=rule).run(until_idle=True)
    assert measured(world)[:3] == [1, 0, 2], "measured again once an evaluation has worked"
    assert (await world.backend.versions()).serving == 3
