"""A run waits for its stages and its trainer as long as they are at work, and no longer."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka.errors import KafkaTimeoutError

from rollbus.nemo.bus.kafka import KafkaBus
from rollbus.nemo.bus.protocol import Bus
from rollbus.nemo.bus.run_log import RunLog
from rollbus.nemo.bus.run_view import RunView
from rollbus.nemo.runs.run_recording import RunRecording
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.codec import encode
from rollbus.schemas.errors import UnavailableError
from rollbus.schemas.records.control import RunCommand, Tick
from rollbus.schemas.records.drops import Drop
from rollbus.schemas.records.steps import StepCompleted, StepFailed, StepStarted
from rollbus.schemas.records.trajectories import RewardRevised
from rollbus.schemas.topics import RUN_LOG, TRAJECTORIES
from rollbus.trainer.ledger.log import Publication
from tests.builders import START_MS, make_ended, make_step, make_trajectory

STEP: dict[str, Any] = {"run_id": "r", "model": "m", "step": 1, "batch_hash": "b", "batch_number": 0, "base_version": 0}
STARTED_STEP = StepStarted(**STEP, attempt=1, started_at_ms=START_MS)
COMPLETED_STEP = StepCompleted(**STEP, policy_version=1, trained=(), started_at_ms=START_MS, completed_at_ms=START_MS)
FAILED_STEP = StepFailed(**STEP, attempt=1, error_class="E", message="no", final=False, failed_at_ms=START_MS)


class ScriptedBus:
    """A log that tells one thing per look, and takes a moment for each."""

    def __init__(self, *records: Any) -> None:
        self.records = list(records)

    async def poll(self) -> list[Any]:
        await asyncio.sleep(0.01)
        record = self.records.pop(0) if self.records else None
        return [record] if record is not None else []

    async def catch_up(self) -> list[Any]:
        records, self.records = self.records, []
        return records


def run_log(*records: Any) -> RunLog:
    return RunLog(cast(Bus, ScriptedBus(*records)), "r", cast(RunRecording, None), stalled_s=0.1)


async def test_a_step_may_take_longer_than_other_waits() -> None:
    log = run_log(STARTED_STEP, *[None] * 30, COMPLETED_STEP)
    await log.wait_for(lambda view: "b" in view.completed, "the training")


@pytest.mark.parametrize("records", [(), (STARTED_STEP, FAILED_STEP), (STARTED_STEP, COMPLETED_STEP)])
async def test_a_log_without_progress_ends_a_run_without_an_open_step(records: Sequence[Any]) -> None:
    with pytest.raises(UnavailableError, match="nothing of this run is new on the log"):
        await run_log(*records).wait_for(lambda view: False, "the training")


OTHERS: list[Any] = [
    make_trajectory(labels={"run": "other"}),
    make_step(run_id="other"),
    Drop(unit="episode", unit_id="e", stage="assembly", reason="missing_events", dropped_at_ms=START_MS),
    make_ended(),
    RewardRevised(trajectory_id="t", episode_id="e", group_hint="g", revision=1, revised_at_ms=START_MS),
]


async def test_other_runs_records_are_no_progress_of_a_run() -> None:
    log = run_log(*OTHERS * 20)
    with pytest.raises(UnavailableError, match="nothing of this run is new on the log"):
        await log.wait_for(lambda view: not cast(ScriptedBus, log.bus).records, "the training")


def tick(number: int, *, apart_ms: int) -> Tick:
    time_ms = START_MS + number * apart_ms
    return Tick(number=number, stream_time_ms=time_ms, wall_clock_ms=time_ms, interval_ms=apart_ms)


async def test_stages_that_are_behind_with_other_traffic_are_waited_for() -> None:
    log = run_log(*[tick(number, apart_ms=1) for number in range(30)], make_trajectory(labels={"run": "r"}))
    await log.wait_for(lambda view: bool(view.trajectories), "the groups")


async def test_stages_that_keep_up_and_have_nothing_of_a_run_are_not_waited_for() -> None:
    log = run_log(*[tick(number, apart_ms=20) for number in range(30)])
    with pytest.raises(UnavailableError, match="nothing of this run is new on the log"):
        await log.wait_for(lambda view: not cast(ScriptedBus, log.bus).records, "the groups")


async def test_a_paused_run_waits_until_it_is_resumed() -> None:
    pause, resume = (RunCommand(run_id="r", command=name, command_id=name) for name in ("pause", "resume"))
    log = run_log(pause, *[None] * 30, resume, COMPLETED_STEP)
    await log.wait_for(lambda view: "b" in view.completed, "the training")
    with pytest.raises(UnavailableError, match="nothing of this run is new on the log"):
        await log.wait_for(lambda view: False, "the training")


async def test_a_run_that_was_paused_before_its_first_epoch_may_begin() -> None:
    log = run_log(RunCommand(run_id="r", command="pause", command_id="p"))
    await log.begin(resume=False)
    assert log.view.is_paused


async def test_a_runs_own_records_are_progress() -> None:
    log = run_log(*[make_trajectory(labels={"run": "r"})] * 30)
    await log.wait_for(lambda view: not cast(ScriptedBus, log.bus).records, "the groups")


async def test_a_process_that_ended_is_noticed_while_others_traffic_comes() -> None:
    log = run_log(*[make_trajectory(labels={"run": "other"})] * 30)

    def check() -> None:
        raise UnavailableError("the worker ended")

    log.checks.append(check)
    with pytest.raises(UnavailableError, match="the worker ended"):
        await log.wait_for(lambda view: not cast(ScriptedBus, log.bus).records, "the training")


def test_a_record_that_comes_again_changes_nothing() -> None:
    revisions = [
        RewardRevised(trajectory_id="t1", episode_id="e1", group_hint="g", revision=number, revised_at_ms=START_MS)
        for number in (1, 2)
    ]
    records = [make_trajectory(labels={"run": "r"}, trajectory_id="t1"), *revisions, STARTED_STEP, COMPLETED_STEP]
    view, again = RunView("r"), RunView("r")
    view.take_records(records)
    again.take_records([*records, *reversed(records)])
    assert again == view


def test_of_ticks_only_the_newest_of_the_runs_log_is_read() -> None:
    messages = [
        SimpleNamespace(topic=topic.full_name("t."), value=encode(tick(number, apart_ms=1)))
        for number, topic in enumerate((RUN_LOG, RUN_LOG, TRAJECTORIES))
    ]
    assert list(KafkaBus(KafkaConnection(), "t.")._decode(messages)) == [tick(1, apart_ms=1)]


class Refusing:
    """A producer that takes a record and cannot deliver it."""

    async def send(self, *_: Any, **__: Any) -> "asyncio.Future[None]":
        delivery = asyncio.get_running_loop().create_future()
        delivery.set_exception(KafkaTimeoutError())
        return delivery

    async def flush(self) -> None:
        """As the client's: what was not delivered is said by its future alone."""


async def test_a_record_that_was_not_delivered_is_an_error() -> None:
    bus = KafkaBus(KafkaConnection(), "t.")
    bus._producer = cast(Any, Refusing())
    command = RunCommand(run_id="r", command="end_window", command_id="c")
    with pytest.raises(UnavailableError, match="writing to the run's log"):
        await bus.publish([Publication(RUN_LOG, "r", command)])
