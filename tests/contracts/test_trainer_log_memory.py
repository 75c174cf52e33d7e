"""The shipped in-memory log keeps to the trainer's contract."""

from collections.abc import Sequence
from typing import Any

import pytest

from rollbus.schemas.records.trajectories import Location
from rollbus.schemas.topics import Topic
from tests.contracts.trainer_log import TrainerLogContract, as_bytes
from tests.trainer.log_memory import MemoryBroker, MemoryLog


class MemoryWorld:
    """A `MemoryBroker` as the other processes see it."""

    def __init__(self) -> None:
        self.broker = MemoryBroker()

    def log(self) -> MemoryLog:
        return MemoryLog(self.broker, run_id="main", model="agent")

    async def append(self, topic: Topic, key: str, *records: Any) -> Sequence[Location]:
        return [self.broker.append_bytes(topic, as_bytes(record)) for record in records]

    async def expire(self, location: Location) -> None:
        self.broker.expire(location)

    async def records(self, topic: Topic) -> Sequence[Any]:
        return self.broker.records(topic)


class TestMemoryLog(TrainerLogContract):
    """The contract on `MemoryLog`."""

    @pytest.fixture
    def world(self) -> MemoryWorld:
        return MemoryWorld()
