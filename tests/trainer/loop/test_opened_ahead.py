"""The next step opened in the transaction that closes this one: when, when not, and whatever dies around it."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from rollbus.runtime.health.alarms.divergence import CollapseLimits
from rollbus.schemas.errors import ConfigurationError, FencedError, RunStoppedError
from rollbus.schemas.records.control import RunCommand
from rollbus.schemas.records.steps import StepCompleted, StepFailed, StepStarted
from rollbus.schemas.topics import BATCHES, RUN_LOG, TRAINING_STEPS
from rollbus.trainer.backends.memory import MemoryBackend
from rollbus.trainer.backends.protocol import TrainResult
from rollbus.trainer.ledger.log import Publication
from rollbus.trainer.loop import step
from rollbus.trainer.settings import MemoryBackendSettings
from rollbus.trainer.validation.promotion import PromotionRule
from tests.builders import make_command
from tests.trainer.log_memory import MemoryLog
from tests.trainer.scenario import UPDATE_S, World, check_exactly_once, make_batch

APART = ["StepStarted", "StepCompleted"]
TOGETHER = ["StepCompleted StepStarted"]


class Transactions(MemoryLog):
    """Notes which steps each transaction opens and closes."""

    def __init__(self, world: World) -> None:
        super().__init__(world.broker, run_id="main", model="agent")
        self.seen: list[str] = []

    async def publish(self, publications: Sequence[Publication], **options: Any) -> Sequence[Publication]:
        written = await super().publish(publications, **options)
        names = [type(publication.record).__name__ for publication in written if publication.topic is TRAINING_STEPS]
        if names:
            self.seen.append(" ".join(names))
        return written


def slow_world(**options: Any) -> World:
    return World(backend=MemoryBackend(step_s=UPDATE_S, **options))


class Steep(MemoryBackend):
    """Reports a gradient that `STEEP` does not let pass."""

    async def wait(self, batch_hash: str, poll_interval_s: float = 0.5) -> TrainResult:
        result = await super().wait(batch_hash, poll_interval_s)
        return replace(result, metrics={**result.metrics, "grad_norm": 2.0})


STEEP: dict[str, Any] = {"alarm": CollapseLimits(grad_norm=1.0), "alarm_window_steps": 1}


async def transactions(world: World, **settings: Any) -> list[str]:
    log = Transactions(world)
    with suppress(RunStoppedError):  # where a pause holds; what was written until then is looked at
        await world.trainer(log=log, **settings).run(until_idle=True)
    return log.seen


async def test_one_transaction_closes_a_step_and_opens_the_next() -> None:
    world = slow_world()
    batches = world.add_batches(3)
    assert await transactions(world) == ["StepStarted", *TOGETHER * 2, "StepCompleted"]
    check_exactly_once(world, batches)
    starts = [record for record in world.records(TRAINING_STEPS) if isinstance(record, StepStarted)]
    assert [(start.step, start.attempt, start.base_version) for start in starts] == [(1, 1, 0), (2, 1, 1), (3, 1, 2)]


@pytest.mark.parametrize(
    "settings",
    [
        {"promote_if": PromotionRule(evaluation="held-out", metric="win")},
        STEEP,
    ],
    ids=["a candidate may have to be promoted", "an alarm goes off"],
)
async def test_a_step_is_closed_alone_if_other_work_precedes_the_next(settings: dict[str, Any]) -> None:
    world = World(backend=Steep(step_s=UPDATE_S))
    world.add_batches(2)
    assert (await transactions(world, **settings))[:2] == APART


async def test_an_alarm_is_raised_in_the_transaction_of_the_step_that_raises_it() -> None:
    world = World(backend=Steep(step_s=UPDATE_S))
    world.add_batches(2)
    groups: list[set[str]] = []

    class Groups(MemoryLog):
        async def publish(self, publications: Any, **options: Any) -> Any:
            written = await super().publish(publications, **options)
            groups.append({type(publication.record).__name__ for publication in written})
            return written

    log = Groups(world.broker, run_id="main", model="agent")
    with pytest.raises(RunStoppedError, match="grad_norm"):
        await world.trainer(log=log, **STEEP).run(until_idle=True)
    assert [group for group in groups if "RunCommand" in group and "StepCompleted" in group]
    assert len(world.steps()) == 1


async def test_a_pause_written_while_the_backend_works_leaves_the_next_batch_alone() -> None:
    world = slow_world()
    world.add_batches(3)

    class Pausing(MemoryBackend):
        async def wait(self, batch_hash: str, poll_interval_s: float = 0.5) -> TrainResult:
            result = await super().wait(batch_hash, poll_interval_s)
            if result.version == 2:
                world.broker.append(RUN_LOG, make_command("pause", key="p"))
            return result

    world.backend = Pausing(step_s=UPDATE_S)
    assert await transactions(world) == ["StepStarted", *TOGETHER, "StepCompleted"]
    world.broker.append(RUN_LOG, make_command("resume", key="r"))
    assert await transactions(world) == APART


async def test_a_look_that_takes_long_holds_no_transaction_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "LONGEST_LOOK_S", 0.01)
    world = slow_world()
    batches = world.add_batches(3)

    class Slow(Transactions):
        async def paused(self) -> RunCommand | None:
            if len(self.seen) == 2:  # while the second step is being closed
                await asyncio.sleep(2 * UPDATE_S)
            return await super().paused()

    log = Slow(world)
    await world.trainer(log=log).run(until_idle=True)
    assert log.seen == ["StepStarted", *TOGETHER, *APART[::-1], "StepCompleted"]
    check_exactly_once(world, batches)


async def test_a_trainer_that_is_asked_to_stop_opens_no_further_step() -> None:
    world = slow_world()
    world.add_batches(3)
    world.settings = world.settings.model_copy(update={"backend": MemoryBackendSettings(type="memory")})
    trainer = world.trainer()
    running = asyncio.create_task(trainer.run())
    while not any(isinstance(record, StepStarted) for record in world.records(TRAINING_STEPS)):  # noqa: ASYNC110
        await asyncio.sleep(0)
    trainer.stop()
    await running
    assert [type(record) for record in world.records(TRAINING_STEPS)] == [StepStarted, StepCompleted]


async def test_a_batch_for_another_model_is_not_opened() -> None:
    world = slow_world()
    world.add_batches(1)
    world.broker.append(BATCHES, make_batch(1, [world.stored("x", (0.0, 1.0))], model="another"))
    with pytest.raises(ConfigurationError, match="another"):
        await world.trainer().run(until_idle=True)
    assert [type(record) for record in world.records(TRAINING_STEPS)] == [StepStarted, StepCompleted]


async def test_a_batch_repeated_in_the_log_is_not_opened_again() -> None:
    world = slow_world()
    batches = world.add_batches(2)
    for batch in batches:
        world.broker.append(BATCHES, batch)
    await world.trainer().run(until_idle=True)
    check_exactly_once(world, batches)
    assert world.broker.offsets["main"] == 4


async def test_a_failed_attempt_at_a_step_opened_ahead_is_repeated() -> None:
    failed: list[object] = []

    def fault(point: str, request: Any) -> None:
        if request.base_version == 1 and not failed:
            failed.append(request)
            raise OSError("disk full")

    world = slow_world(fault=fault)
    batches = await world.train(3)
    check_exactly_once(world, batches)
    assert [
        (record.step, record.attempt) for record in world.records(TRAINING_STEPS) if isinstance(record, StepFailed)
    ] == [(2, 1)]
    starts = [record for record in world.records(TRAINING_STEPS) if isinstance(record, StepStarted)]
    assert [(start.step, start.attempt) for start in starts] == [(1, 1), (2, 1), (2, 2), (3, 1)]


async def test_a_trainer_fenced_meanwhile_neither_closes_nor_opens() -> None:
    world = slow_world()
    batches = world.add_batches(2)

    class Overtaken(MemoryBackend):
        async def wait(self, batch_hash: str, poll_interval_s: float = 0.5) -> TrainResult:
            result = await super().wait(batch_hash, poll_interval_s)
            await MemoryLog(world.broker, run_id="main", model="agent").open()
            return result

    with pytest.raises(FencedError):
        await world.trainer(backend=Overtaken(step_s=UPDATE_S)).run(until_idle=True)
    assert [type(record) for record in world.records(TRAINING_STEPS)] == [StepStarted]
    await world.trainer().run(until_idle=True)
    check_exactly_once(world, batches)


async def test_a_backend_that_lost_the_version_stops_the_run() -> None:
    world = slow_world()
    world.add_batches(2)
    replaced = MemoryBackend(step_s=UPDATE_S)

    class Replaced(MemoryBackend):
        async def submit(self, request: Any) -> str:
            return await (replaced.submit(request) if request.base_version else super().submit(request))

    with pytest.raises(Exception, match="the model has moved on to 0"):
        await world.trainer(backend=Replaced(step_s=UPDATE_S)).run(until_idle=True)
    assert len(world.steps()) == 1
