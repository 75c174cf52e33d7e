"""A run waits for its stages and its trainer as long as they are at work, and no longer."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from aiokafka.errors import KafkaTimeoutError

from rollbus.nemo.bus.kafka import KafkaBus
from rollbus.nemo.bus.protocol import Bus
from rollbus.nemo.bus.run_log import RunLog
from rollbus.nemo.bus.run_view import RunView
from rollbus.nemo.runs.run_recording import RunRecording
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.errors import UnavailableError
from rollbus.schemas.records.control import RunCommand
from rollbus.schemas.records.drops import Drop
from rollbus.schemas.records.steps import StepCompleted, StepFailed, StepStarted
from rollbus.schemas.records.trajectories import RewardRevised
from rollbus.schemas.topics import RUN_LOG
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
]


async def test_other_runs_records_are_no_progress_of_a_run() -> None:
    log = run_log(*OTHERS * 25)
    with pytest.raises(UnavailableError, match="nothing of this run is new on the log"):
        await log.wait_for(lambda view: not cast(ScriptedBus, log.bus).records, "the training")


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
    view.take(records)
    again.take([*records, *reversed(records)])
    assert again == view


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
