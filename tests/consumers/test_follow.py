"""A logger that reads from the log continues after its group has been rebalanced."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError
from aiokafka.structs import OffsetAndMetadata

from rollbus.consumers.loggers.follow_kafka import Takes, _feed
from rollbus.runtime.kafka.positions import MarkedConsumer
from rollbus.schemas.codec import encode
from rollbus.schemas.records.steps import StepCompleted
from tests.builders import START_MS, make_step
from tests.consumers.memory_logger import MemoryLogger
from tests.positions import new_positions

PLACE = TopicPartition("rollbus.training-steps", 0)


@dataclass(frozen=True, slots=True)
class FetchedRecord:
    """A record as the client gives it."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes
    value: bytes


class SharedOut:
    """A consumer whose first commit comes after its partition went to another member and back."""

    def __init__(self, error: Exception, stop: asyncio.Event) -> None:
        self.error, self.stop = error, stop
        self.commits: list[dict[TopicPartition, int]] = []

    async def getmany(self, timeout_ms: int) -> dict[TopicPartition, list[Any]]:
        value = encode(make_step(len(self.commits) + 1))
        return {PLACE: [FetchedRecord(PLACE.topic, PLACE.partition, len(self.commits), START_MS, b"main", value)]}

    def assignment(self) -> set[TopicPartition]:
        return {PLACE}

    async def commit(self, positions: dict[TopicPartition, OffsetAndMetadata]) -> None:
        self.commits.append({place: position.offset for place, position in positions.items()})
        if len(self.commits) == 1:
            raise self.error
        self.stop.set()


@pytest.mark.parametrize("error", [CommitFailedError("fenced"), IllegalStateError("not assigned")])
async def test_a_commit_for_a_partition_that_was_taken_away_ends_nothing(error: Exception) -> None:
    stop, logger = asyncio.Event(), MemoryLogger()
    consumer = SharedOut(error, stop)
    assert (
        await asyncio.wait_for(
            _feed(consumer, MarkedConsumer(consumer, new_positions), {StepCompleted: logger.log_step}, stop, 0.01), 120
        )
        == 2
    )
    assert sorted(logger.steps) == [("main", 1), ("main", 2)]
    assert consumer.commits == [{PLACE: 1}, {PLACE: 2}]


class OneBatch:
    """A consumer whose first poll brings three steps, and the others nothing."""

    def __init__(self) -> None:
        self.commits: list[dict[TopicPartition, int]] = []
        self.waiting = [
            FetchedRecord(PLACE.topic, PLACE.partition, offset, START_MS, b"main", encode(make_step(offset)))
            for offset in range(3)
        ]

    async def getmany(self, timeout_ms: int) -> dict[TopicPartition, list[Any]]:
        records, self.waiting = self.waiting, []
        await asyncio.sleep(0)
        return {PLACE: records} if records else {}

    def assignment(self) -> set[TopicPartition]:
        return {PLACE}

    async def commit(self, positions: dict[TopicPartition, OffsetAndMetadata]) -> None:
        self.commits.append({place: position.offset for place, position in positions.items()})


class StoppedAt(MemoryLogger):
    """A logger during whose step so-and-so the process is told to stop; it takes the step, or fails."""

    def __init__(self, number: int, stop: asyncio.Event, *, fails: bool) -> None:
        super().__init__()
        self.number, self.stop, self.fails = number, stop, fails

    def log_step(self, record: StepCompleted) -> None:
        if record.step == self.number:
            self.stop.set()
            if self.fails:
                raise OSError("no tracker")
        super().log_step(record)


@pytest.mark.parametrize(("fails", "taken"), [(False, 2), (True, 1)])
async def test_a_stopped_reader_ends_after_its_record_and_commits(fails: bool, taken: int) -> None:
    stop, consumer = asyncio.Event(), OneBatch()
    logger = StoppedAt(1, stop, fails=fails)
    takes: Takes = {StepCompleted: logger.log_step}
    assert (
        await asyncio.wait_for(_feed(consumer, MarkedConsumer(consumer, new_positions), takes, stop, 0.01), 120)
        == taken
    )
    assert sorted(logger.steps) == [("main", number) for number in range(taken)]
    assert consumer.commits == [{PLACE: taken}]
