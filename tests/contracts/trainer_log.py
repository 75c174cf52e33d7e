"""What every `TrainerLog` keeps to; run on the shipped in-memory log and on a real broker."""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

import pytest

from rollbus.schemas.codec import encode
from rollbus.schemas.errors import FencedError, UnavailableError
from rollbus.schemas.records.steps import Evaluation, StepStarted
from rollbus.schemas.records.trajectories import Location
from rollbus.schemas.topics import (
    BATCHES,
    EVALUATIONS,
    POLICY_VERSIONS,
    RUN_LOG,
    SCORES,
    TRAINING_STEPS,
    TRAJECTORIES,
    Topic,
)
from rollbus.trainer.ledger.log import Publication, TrainerLog
from rollbus.trainer.validation.evaluation import build_evaluation
from tests.builders import START_MS, make_command, make_score, make_version
from tests.trainer.scenario import make_batch, make_payload
from tests.waiting import many, until_found

WAIT_S = 120.0
"""Long enough for a busy broker; only reached where a record is missing."""


class LogWorld(Protocol):
    """One namespace of a log, as the other processes see it."""

    def log(self) -> TrainerLog:
        """A new trainer's view of run `main` and model `agent`."""
        ...

    async def append(self, topic: Topic, key: str, *records: Any) -> Sequence[Location]:
        """Write records as another process would, in one committed transaction."""
        ...

    async def expire(self, location: Location) -> None:
        """Lose this record, and those before it, to retention."""
        ...

    async def records(self, topic: Topic) -> Sequence[Any]:
        """Every committed record of a topic with one partition."""
        ...


def started_step(step: int = 1) -> Publication:
    """A StepStarted on its way."""
    record = StepStarted(
        run_id="main",
        model="agent",
        step=step,
        attempt=1,
        batch_hash=f"hash-{step}",
        batch_number=step - 1,
        base_version=0,
        started_at_ms=START_MS,
    )
    return Publication(TRAINING_STEPS, "main", record)


class TrainerLogContract:
    """The tests; a subclass gives the `world` fixture."""

    async def test_batches_come_in_order_without_foreign_or_unreadable_records(self, world: LogWorld) -> None:
        own_batches = [make_batch(number, []) for number in range(3)]
        await world.append(BATCHES, "other", make_batch(0, [], run_id="other"))
        await world.append(BATCHES, "main", b"\x00 not ours")
        await world.append(BATCHES, "main", *own_batches)
        log = world.log()
        await log.open()
        seen = [await log.next_batch(WAIT_S) for _ in own_batches]
        assert [incoming.batch for incoming in seen if incoming is not None] == own_batches
        assert await log.next_batch(0.0) is None
        await log.close()

    async def test_the_log_is_at_its_end_once_no_readable_record_is_left(self, world: LogWorld) -> None:
        log = world.log()
        await log.open()
        assert await _eventually_at_end(log)
        await world.append(BATCHES, "main", *(make_batch(number, []) for number in range(2)))
        await world.append(BATCHES, "other", make_batch(0, [], run_id="other"))
        assert await log.next_batch(WAIT_S) is not None
        assert not await log.at_end(), "the second batch has not come"
        assert await log.next_batch(WAIT_S) is not None
        assert await log.next_batch(0.0) is None
        assert await _eventually_at_end(log), "what is left is another run's"
        await log.open()
        assert not await log.at_end(), "nothing was committed"
        await log.close()

    async def test_only_a_committed_offset_moves_the_next_trainer_on(self, world: LogWorld) -> None:
        await world.append(BATCHES, "main", *(make_batch(number, []) for number in range(2)))
        log = world.log()
        await log.open()
        first = await log.next_batch(WAIT_S)
        await log.next_batch(WAIT_S)
        assert first is not None
        await log.publish((started_step(),), next_offset=first.next_offset)
        await log.close()
        successor = world.log()
        await successor.open()
        second = await successor.next_batch(WAIT_S)
        assert second is not None
        assert second.batch.number == 1
        await successor.close()

    async def test_published_records_are_in_the_ledger_of_the_next_trainer(self, world: LogWorld) -> None:
        log = world.log()
        await log.open()
        assert list(await log.read_ledger()) == []
        version = Publication(POLICY_VERSIONS, "agent", make_version(0))
        await log.publish((started_step(), version, Publication(RUN_LOG, "main", version.record)))
        await log.close()
        successor = world.log()
        await successor.open()
        assert list(await successor.read_ledger()) == [version.record, started_step().record]
        assert list(await world.records(RUN_LOG)) == [version.record]
        await successor.close()

    async def test_records_known_only_at_the_end_are_written_with_the_rest(self, world: LogWorld) -> None:
        version = Publication(POLICY_VERSIONS, "agent", make_version(0))

        async def last() -> list[Publication]:
            return [version]

        log = world.log()
        await log.open()
        assert list(await log.publish((started_step(),), last=last)) == [started_step(), version]
        assert list(await log.publish((started_step(),))) == [started_step()]
        assert list(await log.read_ledger()) == [version.record, started_step().record, started_step().record]
        await log.close()

    async def test_a_publication_whose_last_records_fail_writes_nothing(self, world: LogWorld) -> None:
        await world.append(BATCHES, "main", make_batch(0, []))

        async def last() -> list[Publication]:
            await asyncio.sleep(0.05)  # the first are at the broker by now
            raise ValueError("what comes last")

        log = world.log()
        await log.open()
        received = await log.next_batch(WAIT_S)
        assert received is not None
        with pytest.raises(ValueError, match="what comes last"):
            await log.publish((started_step(),), last=last, next_offset=received.next_offset)
        await log.open()
        assert list(await log.read_ledger()) == []
        assert await log.next_batch(WAIT_S) is not None
        await log.publish((started_step(),))
        assert list(await log.read_ledger()) == [started_step().record]
        await log.close()

    async def test_a_newer_trainer_of_the_model_fences_the_older_whole(self, world: LogWorld) -> None:
        await world.append(BATCHES, "main", make_batch(0, []))
        older, newer = world.log(), world.log()
        await older.open()
        received = await older.next_batch(WAIT_S)
        assert received is not None
        await newer.open()
        with pytest.raises(FencedError):
            await older.publish((started_step(),), next_offset=received.next_offset)
        assert list(await newer.read_ledger()) == []
        assert await newer.next_batch(WAIT_S) is not None
        await newer.publish((started_step(),))
        await older.close()
        await newer.close()

    async def test_a_resumed_trainer_does_not_disturb_its_successor(self, world: LogWorld) -> None:
        older, newer = world.log(), world.log()
        await older.open()
        await older.require_charge()
        await newer.open()
        with pytest.raises(FencedError, match="a newer trainer of this model has taken over"):
            await older.require_charge()
        await older.close()  # its connections were gone, as after a long stop
        with pytest.raises(FencedError, match="a newer trainer of this model has taken over"):
            await older.open()
        await newer.require_charge()
        await newer.publish((started_step(),))
        await older.close()
        await newer.close()

    async def test_a_closed_log_is_unavailable_and_can_be_opened_again(self, world: LogWorld) -> None:
        log = world.log()
        with pytest.raises(UnavailableError):
            await log.publish((started_step(),))
        await log.open()
        await log.close()
        with pytest.raises(UnavailableError):
            await log.publish((started_step(),))
        await log.open()
        await log.publish((started_step(),))
        await log.close()

    async def test_payload_is_found_by_location_and_what_is_not_there_is_missing(self, world: LogWorld) -> None:
        payloads = [make_payload(f"t{number}", seed=number) for number in range(600)]
        locations = await world.append(TRAJECTORIES, "hint", *payloads)
        beyond = Location(topic=locations[0].topic, partition=locations[0].partition, offset=100_000)
        requested_locations = [*(locations[index] for index in (599, 3, 300, 4)), beyond]
        log = world.log()
        await log.open()
        payload_by_location = await log.fetch(requested_locations)
        assert {payload_by_location[location].trajectory_id for location in payload_by_location} == {
            "t599",
            "t3",
            "t300",
            "t4",
        }
        assert payload_by_location[locations[300]] == payloads[300]
        assert beyond not in payload_by_location
        assert dict(await log.fetch([])) == {}
        await log.close()

    async def test_scores_are_found_by_location_where_they_are_scores(self, world: LogWorld) -> None:
        (payload_at,) = await world.append(TRAJECTORIES, "hint", make_payload("t1"))
        score_at, other_at = await world.append(SCORES, "hint", make_score("t1", 0.5), make_score("t2"))
        log = world.log()
        await log.open()
        assert dict(await log.fetch_scores([score_at, payload_at])) == {score_at: make_score("t1", 0.5)}
        assert dict(await log.fetch([score_at, other_at])) == {}
        await log.close()

    async def test_payload_that_retention_removed_is_missing_and_the_rest_is_found(self, world: LogWorld) -> None:
        locations = await world.append(TRAJECTORIES, "hint", *(make_payload(f"t{number}") for number in range(3)))
        await world.expire(locations[0])
        log = world.log()
        await log.open()
        assert {trajectory.trajectory_id for trajectory in (await log.fetch(locations)).values()} == {"t1", "t2"}
        await log.close()

    async def test_an_exclusion_is_seen_soon_after_it_was_written(self, world: LogWorld) -> None:
        log = world.log()
        await log.open()
        await world.append(SCORES, "hint", make_score("t1"))
        assert set(await log.excluded_episodes()) == set()
        await world.append(SCORES, "hint", make_score("t2", excluded=True))
        await until_found(log.excluded_episodes, "the exclusion is not seen")
        assert set(await log.excluded_episodes()) == {"e-t2"}
        await log.close()

    async def test_evaluations_are_those_of_the_model(self, world: LogWorld) -> None:
        log = world.log()
        await log.open()
        assert list(await log.evaluations()) == []
        await world.append(EVALUATIONS, "main", *(make_evaluation(model=model) for model in ("agent", "other")))
        await until_found(log.evaluations, "the evaluation is not seen")
        assert [evaluation.model for evaluation in await log.evaluations()] == ["agent"]
        await log.close()

    async def test_evaluations_come_in_the_order_of_their_measurement(self, world: LogWorld) -> None:
        log = world.log()
        await log.open()
        newer, older = (make_evaluation("agent", now_ms=START_MS + after_ms) for after_ms in (1, 0))
        await world.append(EVALUATIONS, "main", newer, older)
        await until_found(log.evaluations, "the evaluations are not seen", is_enough=many(2))
        assert list(await log.evaluations()) == [older, newer]
        await log.close()

    async def test_a_pause_holds_until_the_run_is_resumed(self, world: LogWorld) -> None:
        log = world.log()
        await log.open()
        assert await log.paused() is None
        await world.append(RUN_LOG, "main", make_command("pause", key="c1"))
        await world.append(RUN_LOG, "main", make_command("end_window", key="c2"))
        assert await _eventually_paused(log, "c1")
        await world.append(RUN_LOG, "other", make_command("resume", key="c3", run_id="other"))
        assert await _eventually_paused(log, "c1")
        await world.append(RUN_LOG, "main", make_command("resume", key="c4"))
        assert await _eventually_paused(log, None)
        await log.close()

    async def test_a_stop_holds_until_the_run_is_resumed(self, world: LogWorld) -> None:
        log = world.log()
        await log.open()
        await world.append(RUN_LOG, "main", make_command("stop", key="c1"), make_command("pause", key="c2"))
        assert await _eventually_paused(log, "c2")
        stop = await log.stopped()
        assert stop is not None
        assert stop.command_id == "c1"
        await world.append(RUN_LOG, "main", make_command("resume", key="c3"))
        assert await _eventually_paused(log, None)
        assert await log.stopped() is None
        await log.close()


def make_evaluation(model: str, now_ms: int = START_MS) -> Evaluation:
    """Version 1 of a model, measured."""
    return build_evaluation({"reward": [0.5, 1.5]}, model=model, policy_version=1, name="held out", now_ms=now_ms)


def as_bytes(record: Any) -> bytes:
    """Raw bytes as they are, records encoded."""
    return record if isinstance(record, bytes) else encode(record)


async def _eventually_at_end(log: TrainerLog) -> bool:
    """One look may be too short for a fetch."""
    async with asyncio.timeout(WAIT_S):
        while not await log.at_end():
            assert await log.next_batch(0.02) is None
    return True


async def _eventually_paused(log: TrainerLog, command_id: str | None) -> bool:
    """A commit's markers come after its answer."""

    async def is_so() -> bool:
        pause = await log.paused()
        return (None if pause is None else pause.command_id) == command_id

    return await until_found(is_so, f"the pause is never {command_id}")
