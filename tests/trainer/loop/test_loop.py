"""The trainer's loop on the shipped in-memory log and backend: what is recorded, and what makes it stop."""

import asyncio

import pytest

from rollbus.schemas.errors import (
    DataLossError,
    RejectedError,
    RunStoppedError,
    UnavailableError,
)
from rollbus.schemas.records.groups import StepOutcome
from rollbus.schemas.records.steps import StepCompleted, StepFailed, StepSkipped, StepStarted
from rollbus.schemas.topics import BATCHES, POLICY_VERSIONS, RUN_LOG, SCORES, TRAINING_STEPS
from rollbus.trainer.backends.memory import MemoryBackend
from rollbus.trainer.backends.protocol import Versions
from rollbus.trainer.ledger.log import ReceivedBatch
from rollbus.trainer.loop import step as step_module
from rollbus.trainer.loop.loop import Trainer
from tests.builders import make_score
from tests.trainer.log_memory import MemoryLog
from tests.trainer.scenario import World, check_exactly_once, make_batch


class AwayAfter(MemoryBackend):
    """Says once which versions there are, at the start, and then nothing more."""

    def __init__(self, answers: int) -> None:
        super().__init__()
        self.answers = answers

    async def versions(self) -> Versions:
        self.answers -= 1
        if self.answers < 0:
            raise UnavailableError("no answer")
        return await super().versions()


async def test_each_batch_becomes_one_step_with_its_version_and_outcome() -> None:
    world = World()
    batches = await world.train(3)
    check_exactly_once(world, batches)
    assert [type(record) for record in world.records(TRAINING_STEPS)] == [StepStarted, StepCompleted] * 3
    assert [(record.version, record.parent) for record in world.records(POLICY_VERSIONS)] == [
        (0, None),
        (1, 0),
        (2, 1),
        (3, 2),
    ]
    outcomes = [record for record in world.records(RUN_LOG) if isinstance(record, StepOutcome)]
    assert [(outcome.batch_number, outcome.policy_version) for outcome in outcomes] == [(0, 1), (1, 2), (2, 3)]
    assert (await world.backend.versions()).serving == 3


async def test_a_long_update_is_logged_repeatedly(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_module, "LINE_S", 0.01)
    world = World(backend=MemoryBackend(step_s=0.2))
    with caplog.at_level("INFO", step_module.logger.name):
        await world.train(1)
    begun, *repeated, last = caplog.messages
    assert begun == "step 1 run=main base=0 trains 3 trajectories"
    assert len(repeated) > 1
    assert all(line.startswith("step 1 run=main has been training for ") for line in repeated)
    assert last.startswith("step 1 run=main base=0 version=1 ")


async def test_a_step_names_its_members_their_lags_and_the_reasons_of_drops() -> None:
    world = World()
    await world.train(2)
    step = world.steps()[1]
    assert isinstance(step, StepCompleted)
    assert [(member.trajectory_id, member.lag, member.sampled_tokens) for member in step.trained] == [
        (f"b1g0-{index}", 1, 3) for index in range(3)
    ]
    assert {member.trajectory_id: member.reason for member in step.dropped} == {
        "b1g1-0": "no_signal",
        "b1g1-1": "no_signal",
    }
    assert step.metrics["lag_max"] == 1
    assert step.metrics["lag_1"] == 3
    assert step.metrics["trained"] == 3
    assert step.metrics["dropped_no_signal"] == 2
    assert step.metrics["reward_mean"] == pytest.approx(2 / 3)
    assert step.metrics["seconds_outside_backend"] >= 0


async def test_a_batch_with_nothing_to_train_becomes_a_skipped_step() -> None:
    world = World()
    batches = [*world.add_batches(1), make_batch(1, [world.stored("flat", [1.0, 1.0])])]
    world.broker.append(BATCHES, batches[1])
    await world.trainer().run(until_idle=True)
    check_exactly_once(world, batches)
    skipped = world.steps()[1]
    assert isinstance(skipped, StepSkipped)
    assert skipped.base_version == 1
    outcome = [record for record in world.records(RUN_LOG) if isinstance(record, StepOutcome)][-1]
    assert (outcome.state, outcome.policy_version) == ("skipped", 1)


async def test_trajectories_older_than_the_limit_are_dropped_as_stale() -> None:
    world = World()
    batches = await world.train(3, max_off_policy_steps=1)
    check_exactly_once(world, batches)
    stale = [member.trajectory_id for member in world.steps()[2].dropped if member.reason == "stale"]
    assert len(stale) == 5


async def test_payload_that_retention_removed_is_a_counted_drop() -> None:
    world = World()
    batches = world.add_batches(1)
    world.broker.expire(batches[0].groups[0].members[1].location)
    await world.trainer().run(until_idle=True)
    check_exactly_once(world, batches)
    assert {member.trajectory_id for member in world.steps()[0].dropped if member.reason == "payload_lost"} == {
        "b0g0-1"
    }


async def test_a_step_stops_the_run_after_three_retries_with_pauses() -> None:
    def out_of_memory(point: str, request: object) -> None:
        raise MemoryError("no room")

    world = World(backend=MemoryBackend(fault=out_of_memory))
    world.add_batches(1)
    with pytest.raises(RunStoppedError, match=r"step 1 of run 'main' .*no room"):
        await world.trainer(retry_pauses_s=(1.0, 5.0, 25.0)).run(until_idle=True)
    failures = [record for record in world.records(TRAINING_STEPS) if isinstance(record, StepFailed)]
    assert [(failure.step, failure.attempt, failure.final) for failure in failures] == [
        (1, 1, False),
        (1, 2, False),
        (1, 3, False),
        (1, 4, True),
    ]
    assert world.pauses == [1.0, 5.0, 25.0]
    assert not world.steps()


async def test_attempts_that_fail_before_they_can_start_are_counted_too() -> None:
    world = World()
    world.add_batches(1)
    with pytest.raises(RunStoppedError):
        await world.trainer(backend=AwayAfter(1), retry_pauses_s=(0, 0)).run(until_idle=True)
    with pytest.raises(RunStoppedError):
        await world.trainer(backend=AwayAfter(1), retry_pauses_s=(0,)).run(until_idle=True)
    failures = [record for record in world.records(TRAINING_STEPS) if isinstance(record, StepFailed)]
    assert [(failure.step, failure.attempt) for failure in failures] == [(1, 1), (1, 2), (1, 3), (1, 4), (1, 5)]
    await world.trainer().run(until_idle=True)
    starts = [record for record in world.records(TRAINING_STEPS) if isinstance(record, StepStarted)]
    assert [(start.step, start.attempt) for start in starts] == [(1, 6)]


@pytest.mark.parametrize("skip", [False, True])
async def test_a_batch_refused_by_the_backend_stops_the_run_or_is_dropped(skip: bool) -> None:
    def refuse_first(point: str, request: object) -> None:
        if getattr(request, "base_version", None) == 0 and "b0g0-0" in str(request):
            raise RejectedError("a non-finite gradient")

    world = World(backend=MemoryBackend(fault=refuse_first))
    batches = world.add_batches(2)
    trainer = world.trainer(on_rejected="skip" if skip else "stop")
    if not skip:
        with pytest.raises(RunStoppedError, match="non-finite gradient"):
            await trainer.run(until_idle=True)
        assert [record.final for record in world.records(TRAINING_STEPS) if isinstance(record, StepFailed)] == [True]
        return
    await trainer.run(until_idle=True)
    check_exactly_once(world, batches)
    assert {member.reason for member in world.steps()[0].dropped} == {"rejected_by_backend", "no_signal"}


async def test_a_run_that_trains_no_batch_for_long_stops_with_the_reasons() -> None:
    world = World()
    for number in range(2):
        world.broker.append(BATCHES, make_batch(number, [world.stored(f"flat{number}", [1.0, 1.0])]))
    lost = world.stored("lost", [0.0, 1.0])
    for member in lost.members:
        world.broker.expire(member.location)
    world.broker.append(BATCHES, make_batch(2, [lost]))
    with pytest.raises(RunStoppedError, match="last 3 batches trained nothing") as stopped:
        await world.trainer(max_skipped_in_a_row=3).run(until_idle=True)
    words = str(stopped.value)
    assert "4 trajectories are in a group whose rewards are all equal (`no_signal`): see `rollbus sql run" in words
    assert "2 trajectories are no longer in the log (`payload_lost`): raise `worker: retention_hours:`" in words
    assert "stale" not in words


async def test_a_backend_at_another_version_than_the_log_stops_the_trainer() -> None:
    world = World()
    await world.train(2)
    world.add_batches(1)
    with pytest.raises(DataLossError, match=r"version 2 by the log.*head is version 0"):
        await world.trainer(backend=MemoryBackend()).run(until_idle=True)


async def test_versions_of_the_backend_are_announced_before_the_first_step() -> None:
    before, world = World(), World()
    await before.train(2)
    world.backend = before.backend
    batches = world.add_batches(1, name="other")
    await world.trainer().run(until_idle=True)
    assert [record.version for record in world.records(POLICY_VERSIONS)] == [0, 1, 2, 3]
    check_exactly_once(world, batches)


async def test_a_batch_trained_for_a_lost_log_is_not_recorded_as_new() -> None:
    before, world = World(), World()
    await before.train(2)
    world.backend = before.backend
    world.add_batches(1)
    with pytest.raises(DataLossError, match=r"trained batch .* before"):
        await world.trainer().run(until_idle=True)
    assert not world.steps()


async def test_a_run_to_the_last_batch_waits_for_one_that_is_slow_to_come() -> None:
    class SlowLog(MemoryLog):
        looks = 0

        async def next_batch(self, timeout_s: float, *, skip_unreadable: bool = True) -> ReceivedBatch | None:
            self.looks += 1
            slow = self.looks % 3
            return None if slow else await super().next_batch(timeout_s, skip_unreadable=skip_unreadable)

    world = World()
    batches = await world.train(2, log=SlowLog(world.broker, run_id="main", model="agent"))
    check_exactly_once(world, batches)


async def test_a_step_open_at_a_stop_is_completed_from_the_journal() -> None:
    """Even if the door would refuse its members now."""
    world = World(backend=MemoryBackend(step_s=0.05))
    batches = world.add_batches(2)
    trainer = world.trainer()
    running = asyncio.create_task(trainer.run())
    while trainer.ledger.open_step is None:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    trainer.stop()
    await running
    assert not world.steps()
    for member in batches[0].groups[0].members:
        world.broker.append(SCORES, make_score(member.trajectory_id, episode_id=member.episode_id, excluded=True))
    await world.trainer().run(until_idle=True)
    check_exactly_once(world, batches)
    assert [type(step) for step in world.steps()] == [StepCompleted, StepCompleted]
    assert max(world.backend.weights_tree.versions) == 2


async def test_a_stop_while_the_log_is_away_ends_the_trainer_in_silence() -> None:
    tried = asyncio.Event()

    class AwayLog(MemoryLog):
        async def open(self) -> None:
            tried.set()
            raise UnavailableError("nobody listens at 127.0.0.1:1")

    world = World()
    log = AwayLog(world.broker, run_id="main", model="agent")
    trainer = Trainer(log, world.backend, world.settings, sleep=asyncio.sleep)
    running = asyncio.create_task(trainer.run())
    await tried.wait()
    trainer.stop()  # while it pauses before it tries again
    await running
