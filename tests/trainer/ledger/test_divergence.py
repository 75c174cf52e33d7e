"""Runaway training pauses the run, says why, and goes on when an operator resumes it."""

import asyncio
import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbus.runtime.health.alarms import divergence
from rollbus.runtime.health.alarms.divergence import CollapseLimits, find_pause
from rollbus.schemas.errors import RunStoppedError, UnavailableError
from rollbus.schemas.records.control import RunCommand
from rollbus.schemas.topics import BATCHES, RUN_LOG
from rollbus.trainer.backends.memory import MemoryBackend
from rollbus.trainer.backends.protocol import TrainResult
from rollbus.trainer.loop.between_steps import BetweenSteps
from rollbus.trainer.loop.waiting import Stop
from rollbus.trainer.operate.policy import roll_back
from tests.builders import make_command
from tests.trainer.log_memory import MemoryLog
from tests.trainer.scenario import SETTINGS, World, check_exactly_once, make_batch

LIMITS = CollapseLimits()
ALARM: dict[str, Any] = {"alarm": LIMITS, "alarm_window_steps": 3}
find_alarm = partial(divergence.find_alarm, window_steps=3)
HEALTHY = {
    "mismatch_kl": 0.01,
    "clip_fraction": 0.02,
    "effective_sample_size": 0.9,
    "grad_norm": 1.0,
    "entropy": 1.0,
}


def steps(*changes: dict[str, float]) -> list[tuple[int, dict[str, float]]]:
    return [(number, HEALTHY | change) for number, change in enumerate(changes, start=1)]


@pytest.mark.parametrize(
    ("metric", "change"),
    [
        ("mismatch_kl", {"mismatch_kl": 1.5}),
        ("mismatch_kl", {"mismatch_kl": math.nan}),
        ("clip_fraction", {"clip_fraction": 0.6}),
        ("effective_sample_size", {"effective_sample_size": 0.05}),
        ("grad_norm", {"grad_norm": 200.0}),
        ("entropy", {"entropy": 0.01}),
        ("entropy", {"entropy": math.nan}),
    ],
)
def test_each_limit_raises_its_alarm_with_what_to_look_at(metric: str, change: dict[str, float]) -> None:
    limits = LIMITS.model_copy(update={"grad_norm": 100.0, "entropy": 0.1})
    alarm = find_alarm(steps({}, change, change, change), limits)
    assert alarm is not None
    assert (alarm.metric, alarm.first_step, alarm.last_step) == (metric, 2, 4)
    message = alarm.message("main")
    assert metric in message
    assert "steps 2 to 4" in message
    assert "rollbus trainer resume" in message
    assert "inf" not in message


@pytest.mark.parametrize(
    ("metric", "value"),
    [("loss", math.nan), ("loss", math.inf), ("loss", -math.inf), ("grad_norm", math.nan), ("grad_norm", math.inf)],
)
def test_a_metric_that_stays_non_finite_raises_an_alarm_without_a_limit(metric: str, value: float) -> None:
    alarm = find_alarm(steps({}, {metric: value}, {metric: value}, {metric: value}), LIMITS)
    assert alarm is not None
    assert f"the median {metric} of steps 2 to 4 is not finite; " in alarm.message("main")
    assert find_alarm(steps({metric: value}, {metric: 0.5}, {metric: 0.4}), LIMITS) is None


@pytest.mark.parametrize(
    ("metric", "name", "value"),
    [
        ("loss", "loss/train", math.nan),
        ("grad_norm", "loss/grad_norm", math.inf),
        ("entropy", "loss/entropy", 0.01),
        ("entropy", "service_entropy", 0.01),
    ],
)
def test_an_alarm_sees_what_a_backend_reports_by_its_own_name(metric: str, name: str, value: float) -> None:
    limits = LIMITS.model_copy(update={"entropy": 0.1})
    alarm = find_alarm([(step, {name: value}) for step in (1, 2, 3)], limits)
    assert alarm is not None
    assert alarm.metric == metric
    assert find_alarm([(step, {name: value, metric: 1.0}) for step in (1, 2, 3)], limits) is None


@pytest.mark.parametrize(
    "odd",
    [{"mismatch_kl": 50.0}, {"mismatch_kl": math.nan}, {"mismatch_kl": math.inf}, {"effective_sample_size": math.nan}],
)
def test_one_odd_batch_raises_no_alarm(odd: dict[str, float]) -> None:
    assert find_alarm(steps({}, odd, {}), LIMITS) is None
    assert find_alarm(steps(odd, odd), LIMITS) is None, "the window is not full yet"


def test_an_unreported_or_unlimited_metric_raises_no_alarm() -> None:
    assert find_alarm([(number, {}) for number in range(5)], LIMITS) is None
    far = {"mismatch_kl": 50.0}
    assert find_alarm(steps(far, far, far), LIMITS.model_copy(update={"mismatch_kl": None})) is None


@given(st.lists(st.sampled_from(["pause", "resume", "end_window"]), max_size=8))
def test_the_newest_pause_or_resume_decides(commands: list[Any]) -> None:
    pause = find_pause([make_command(command, key=str(index)) for index, command in enumerate(commands)])
    relevant = [(index, command) for index, command in enumerate(commands) if command != "end_window"]
    expected = str(relevant[-1][0]) if relevant and relevant[-1][1] == "pause" else None
    assert (pause.command_id if pause else None) == expected


def raised_at(steps: range, between: BetweenSteps) -> list[int]:
    return [step for step in steps if between.alarm(step, {"mismatch_kl": 50.0}) is not None]


def test_closing_a_step_again_raises_its_alarm_again_and_no_other() -> None:
    between = BetweenSteps(SETTINGS.model_copy(update=ALARM), None, Stop())
    assert raised_at(range(1, 4), between) == [3]
    first, again = (between.alarm(3, {"mismatch_kl": 50.0}) for _ in range(2))
    assert first is not None
    assert again == first, "the step is closed again after a transaction that failed"
    assert raised_at(range(4, 8), between) == [6]


class RunawayBackend(MemoryBackend):
    """Reports what a collapsing policy would."""

    async def wait(self, batch_hash: str, poll_interval_s: float = 0.5) -> TrainResult:
        result = await super().wait(batch_hash, poll_interval_s)
        return replace(result, metrics={**result.metrics, "mismatch_kl": 7.0})


def resume(world: World, key: str) -> None:
    world.broker.append(RUN_LOG, make_command("resume", key=key))


async def test_a_runaway_run_is_paused_until_it_is_resumed() -> None:
    world = World(backend=RunawayBackend(), settings=SETTINGS.model_copy(update={"max_off_policy_steps": 9}))
    batches = world.add_batches(7)
    with pytest.raises(RunStoppedError, match=r"median mismatch_kl of steps 1 to 3 is 7.*same command again"):
        await world.trainer(**ALARM).run(until_idle=True)
    assert len(world.steps()) == 3
    (command,) = [record for record in world.records(RUN_LOG) if isinstance(record, RunCommand)]
    assert command.command == "pause"
    assert "median mismatch_kl of steps 1 to 3 is 7" in str(command.comment)
    with pytest.raises(RunStoppedError, match="steps 1 to 3"):
        await world.trainer(**ALARM).run(until_idle=True)
    assert len(world.steps()) == 3, "a trainer that is started again keeps to it"
    resume(world, "go")
    with pytest.raises(RunStoppedError, match="steps 4 to 6"):
        await world.trainer(**ALARM).run(until_idle=True)
    assert len(world.steps()) == 6, "the window begins again"
    resume(world, "go on")
    await world.trainer(alarm=None).run(until_idle=True)
    check_exactly_once(world, batches)


async def test_an_alarm_counts_steps_from_before_a_restart() -> None:
    world = World(backend=RunawayBackend(), settings=SETTINGS.model_copy(update={"max_off_policy_steps": 9}))
    for _ in range(3):
        await world.train(1, **ALARM)
    world.add_batches(1)
    with pytest.raises(RunStoppedError, match="median mismatch_kl of steps 1 to 3 is 7"):
        await world.trainer(**ALARM).run(until_idle=True)


async def test_steps_that_were_rolled_back_raise_no_alarm_after_it() -> None:
    backend = RunawayBackend()
    world = World(backend=backend, settings=SETTINGS.model_copy(update={"max_off_policy_steps": 9}))
    await world.train(2, **ALARM)
    log = MemoryLog(world.broker, run_id="main", model="agent")
    await roll_back(log, backend, world.settings, version=0, reason="runs away", now_ms=0)
    await world.train(2, **ALARM)
    world.add_batches(2)
    with pytest.raises(RunStoppedError, match="steps 3 to 5"):
        await world.trainer(**ALARM).run(until_idle=True)


async def test_a_healthy_run_is_never_paused() -> None:
    world = World()
    batches = await world.train(6, **ALARM)
    check_exactly_once(world, batches)


async def test_a_paused_trainer_waits_and_takes_the_next_batch_after_the_resume() -> None:
    world = World()
    world.broker.append(RUN_LOG, make_command("pause", key="p"))
    batches = world.add_batches(2)
    trainer = world.trainer(batch_wait_s=0.01)
    running = asyncio.create_task(trainer.run())
    for _ in range(20):
        await asyncio.sleep(0)
    assert world.steps() == []
    resume(world, "r")
    while len(world.steps()) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    trainer.stop()
    await running
    check_exactly_once(world, batches)


async def test_a_run_to_the_last_batch_ends_with_an_error_that_names_the_pause() -> None:
    world = World()
    batches = world.add_batches(2)
    world.broker.append(RUN_LOG, replace(make_command("pause"), comment="looking at the rewards"))
    message = r"run 'main' .*looking at the rewards.*`rollbus trainer resume` and the same command again"
    with pytest.raises(RunStoppedError, match=message):
        await world.trainer().run(until_idle=True)
    assert world.steps() == []
    resume(world, "r")
    await world.trainer().run(until_idle=True)
    check_exactly_once(world, batches)


async def test_a_pause_after_the_last_batch_is_not_an_error() -> None:
    world = World(backend=RunawayBackend())
    batches = world.add_batches(3)
    world.broker.append(BATCHES, make_batch(3, [], run_id="other"))
    for _ in range(2):
        await world.trainer(**ALARM).run(until_idle=True)
    assert any(isinstance(record, RunCommand) for record in world.records(RUN_LOG))
    check_exactly_once(world, batches)


async def test_a_paused_trainer_can_be_stopped() -> None:
    world = World()
    world.broker.append(RUN_LOG, make_command("pause", key="p"))
    trainer = world.trainer(batch_wait_s=0.01)
    running = asyncio.create_task(trainer.run())
    await asyncio.sleep(0)
    trainer.stop()
    await asyncio.wait_for(running, 120)


async def test_a_started_step_is_closed_although_the_run_is_paused() -> None:
    world = World()
    batches = world.add_batches(2)
    broken = [True]

    def fail(point: str, request: Any) -> None:
        if broken[0]:
            raise UnavailableError("out of memory")

    world.backend = MemoryBackend(fault=fail)
    with pytest.raises(RunStoppedError):
        await world.trainer(retry_pauses_s=()).run(until_idle=True)
    broken[0] = False
    world.broker.append(RUN_LOG, make_command("pause", key="p"))
    with pytest.raises(RunStoppedError, match="paused"):
        await world.trainer().run(until_idle=True)
    assert len(world.steps()) == 1
    resume(world, "r")
    await world.trainer().run(until_idle=True)
    check_exactly_once(world, batches)
