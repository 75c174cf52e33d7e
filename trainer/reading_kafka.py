"""Read a topic as far as it is committed now: the ledger in full, scores and exclusions for what was excluded."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from rollbus.schemas.codec import decode, record_name
from rollbus.schemas.control import RunCommand
from rollbus.schemas.errors import RecordError
from rollbus.schemas.events import Excluded
from rollbus.schemas.kafka_connection import KafkaConnection
from rollbus.schemas.steps import Evaluation
from rollbus.schemas.trajectories import Score
from rollbus.trainer.alarm import standing_pause
from rollbus.trainer.connection_kafka import kafka_errors, reader_options
from rollbus.trainer.joining import Joiner

POLL_MS = 200


@dataclass(frozen=True, slots=True)
class Frame:
    """One whole record as bytes, with the key it came under."""

    key: bytes | None
    value: bytes


async def read_all(connection: KafkaConnection, topic: str) -> list[Frame]:
    """Return every committed record of a topic with one partition."""
    partition = TopicPartition(topic, 0)
    with kafka_errors(f"reading {topic}"):
        consumer = AIOKafkaConsumer(**reader_options(connection))
        try:
            await consumer.start()
            consumer.assign([partition])
            await consumer.seek_to_beginning(partition)
            return [frame async for frame in to_the_end(consumer, {partition: Joiner()})]
        finally:
            await consumer.stop()


async def to_the_end(consumer: AIOKafkaConsumer, joiners: dict[TopicPartition, Joiner]) -> AsyncIterator[Frame]:
    """Yield from the consumer's positions to what is committed at the call; fetches nothing where it stands there.

    Afterwards the partitions are paused, so that the broker is not asked for what comes next.
    """
    ends = await consumer.end_offsets(list(joiners))
    behind = await _behind(consumer, ends)
    if not behind:
        return
    consumer.resume(*behind)
    while behind := await _behind(consumer, {each: ends[each] for each in behind}):
        for partition, records in (await consumer.getmany(*behind, timeout_ms=POLL_MS)).items():
            for record in records:
                if record.value is not None and (whole := _whole(joiners[partition], record)) is not None:
                    yield Frame(record.key, whole)
    consumer.pause(*joiners)


def _whole(joiner: Joiner, record: Any) -> bytes | None:
    """Return a record's bytes once all are there, and those of a broken chunk as they are: nobody can decode them."""
    try:
        whole = joiner.add(record.value, record.offset)
    except RecordError:
        return bytes(record.value)
    return whole.data if whole is not None else None


async def _behind(consumer: AIOKafkaConsumer, ends: Mapping[TopicPartition, int]) -> list[TopicPartition]:
    return [each for each, end in ends.items() if await consumer.position(each) < end]


class Follower(ABC):
    """Reads a topic on to its committed end at every call; what it makes of a record is its subclass's."""

    def __init__(self, connection: KafkaConnection, topic: str, partitions: int) -> None:
        self._connection = connection
        self._joiners = {TopicPartition(topic, number): Joiner() for number in range(partitions)}
        self._topic = topic
        self._consumer: AIOKafkaConsumer | None = None
        self._one_reader = asyncio.Lock()

    async def read_on(self) -> None:
        """Take every record that has been committed since."""
        async with self._one_reader:
            with kafka_errors(f"reading {self._topic}"):
                consumer = self._consumer or await self._open()
                async for frame in to_the_end(consumer, self._joiners):
                    self._take(frame)

    async def close(self) -> None:
        """Let the connection go; what was read is kept."""
        if self._consumer is not None:
            await self._consumer.stop()
            self._consumer = None

    async def _open(self) -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(**reader_options(self._connection))
        try:
            await consumer.start()
        except KafkaError:
            await consumer.stop()
            raise
        self._consumer = consumer
        consumer.assign(list(self._joiners))
        consumer.pause(*self._joiners)
        await consumer.seek_to_beginning()
        return consumer

    @abstractmethod
    def _take(self, frame: Frame) -> None:
        """Keep what matters of one record."""


class ExclusionReader(Follower):
    """Follows `scores` or `exclusions`: the episodes that were excluded from training."""

    def __init__(self, connection: KafkaConnection, topic: str, partitions: int) -> None:
        super().__init__(connection, topic, partitions)
        self._excluded: set[str] = set()

    async def excluded_episodes(self) -> Collection[str]:
        """Read on to the end and return all that are excluded."""
        await self.read_on()
        return self._excluded

    def _take(self, frame: Frame) -> None:
        try:
            record = decode(frame.value)
        except RecordError:
            return  # grouping, which decides on scores, dead-letters it
        if isinstance(record, Excluded) or (isinstance(record, Score) and record.excluded):
            self._excluded.add(record.episode_id)


class PauseReader(Follower):
    """Follows `run-log`: the pause that holds for a run. Groups, which are most of it, are not decoded."""

    def __init__(self, connection: KafkaConnection, topic: str, run_id: str) -> None:
        super().__init__(connection, topic, 1)
        self._run_id = run_id
        self._standing: RunCommand | None = None

    async def paused(self) -> RunCommand | None:
        """Read on to the end and return the pause, if one holds."""
        await self.read_on()
        return self._standing

    def _take(self, frame: Frame) -> None:
        if frame.key != self._run_id.encode() or record_name(frame.value) != RunCommand.__name__:
            return
        try:
            command = decode(frame.value)
        except RecordError:
            return  # the curriculum, which decides on run-log, dead-letters it
        standing = () if self._standing is None else (self._standing,)
        self._standing = standing_pause([*standing, command])


class EvaluationReader(Follower):
    """Follows `evaluations`: how the versions of a model did on held-out tasks."""

    def __init__(self, connection: KafkaConnection, topic: str, model: str) -> None:
        super().__init__(connection, topic, 1)
        self._model = model
        self._found: list[Evaluation] = []

    async def evaluations(self) -> Sequence[Evaluation]:
        """Read on to the end and return all of the model's."""
        await self.read_on()
        return self._found

    def _take(self, frame: Frame) -> None:
        try:
            record = decode(frame.value)
        except RecordError:
            return  # the sink, which writes evaluations down, dead-letters it
        if isinstance(record, Evaluation) and record.model == self._model:
            self._found.append(record)
