"""Read a topic as far as it is committed now: the ledger in full, scores and exclusions for what was excluded."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
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
    """One whole record as bytes, with its topic and the key it came under."""

    topic: str
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
                    yield Frame(partition.topic, record.key, whole)
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


class View(ABC):
    """What is made of a topic's records, in their order."""

    @abstractmethod
    def take(self, frame: Frame) -> None:
        """Keep what matters of one record."""


class Follower:
    """Reads topics on to their committed ends at every call: over one connection, and all of them by one question."""

    def __init__(
        self, connection: KafkaConnection, views: Mapping[str, View], partitions: Mapping[str, int] | None = None
    ) -> None:
        """Take a view for each topic, and the numbers of partitions; one where nothing is said."""
        self._connection = connection
        self._views = views
        counts = partitions or {}
        self._joiners = {
            TopicPartition(topic, number): Joiner() for topic in views for number in range(counts.get(topic, 1))
        }
        self._consumer: AIOKafkaConsumer | None = None
        self._one_reader = asyncio.Lock()
        self._begun = self._ended = 0
        """Numbers of the newest look, and of the newest that came to its end."""

    async def read_on(self) -> None:
        """Take every record that has been committed since; calls at the same time share a look."""
        before = self._begun
        await asyncio.sleep(0)
        async with self._one_reader:
            if self._ended > before:
                return  # by a look that began after this call
            self._begun = look = self._begun + 1
            with kafka_errors(f"reading {', '.join(self._views)}"):
                consumer = self._consumer or await self._open()
                async for frame in to_the_end(consumer, self._joiners):
                    self._views[frame.topic].take(frame)
            self._ended = look

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


async def look(connection: KafkaConnection, topic: str, view: View) -> None:
    """Show a view all that is committed now in a topic of one partition."""
    follower = Follower(connection, {topic: view})
    try:
        await follower.read_on()
    finally:
        await follower.close()


class Exclusions(View):
    """Of `scores` and `exclusions`: the episodes that were excluded from training."""

    def __init__(self) -> None:
        self.episodes: set[str] = set()

    def take(self, frame: Frame) -> None:
        """Keep the episode of a record that excludes one."""
        try:
            record = decode(frame.value)
        except RecordError:
            return  # grouping, which decides on scores, dead-letters it
        if isinstance(record, Excluded) or (isinstance(record, Score) and record.excluded):
            self.episodes.add(record.episode_id)


class Pauses(View):
    """Of `run-log`: the pause that holds for a run. Groups, which are most of it, are not decoded."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self.standing: RunCommand | None = None

    def take(self, frame: Frame) -> None:
        """Keep a command to the run."""
        if frame.key != self._run_id.encode() or record_name(frame.value) != RunCommand.__name__:
            return
        try:
            command = decode(frame.value)
        except RecordError:
            return  # the curriculum, which decides on run-log, dead-letters it
        standing = () if self.standing is None else (self.standing,)
        self.standing = standing_pause([*standing, command])


class Evaluations(View):
    """Of `evaluations`: how the versions of a model did on held-out tasks."""

    def __init__(self, model: str) -> None:
        self._model = model
        self.found: list[Evaluation] = []

    def take(self, frame: Frame) -> None:
        """Keep those of the model."""
        try:
            record = decode(frame.value)
        except RecordError:
            return  # the sink, which writes evaluations down, dead-letters it
        if isinstance(record, Evaluation) and record.model == self._model:
            self.found.append(record)
