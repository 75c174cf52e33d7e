"""Read a topic as far as it is committed now: the ledger in full, scores and exclusions for what was excluded."""

import asyncio
import bisect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass

from aiokafka import AIOKafkaConsumer, TopicPartition

from rollbus.runtime.health.alarms.divergence import find_pause, find_stop
from rollbus.runtime.kafka.clients import kafka_errors, start_client, stop_clients
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.kafka.reading import SHORT_WAIT_MS, new_reader, read_from, read_on
from rollbus.schemas.codec import decode, decode_if
from rollbus.schemas.errors import DataLossError, RecordError
from rollbus.schemas.records.control import RunCommand
from rollbus.schemas.records.events import Excluded
from rollbus.schemas.records.steps import Evaluation
from rollbus.schemas.records.trajectories import Score
from rollbus.schemas.topics import POLICY_VERSIONS, TRAINING_STEPS
from rollbus.trainer.ledger.ledger import LedgerRecord


@dataclass(frozen=True, slots=True)
class Frame:
    """One whole record as bytes, with its place and the key it came under."""

    topic: str
    offset: int
    key: bytes | None
    value: bytes


async def read_all(connection: KafkaConnection, topic: str) -> list[Frame]:
    """Return every committed record of a topic with one partition."""
    async with aclosing(read_from(connection, {TopicPartition(topic, 0): 0})) as records:
        return [
            Frame(topic, record.offset, record.key, record.value)
            async for record in records
            if record.value is not None
        ]


async def read_ledger(connection: KafkaConnection, namespace: str) -> list[LedgerRecord]:
    """Return every version, then every record of a step; raises DataLossError for one that cannot be read."""
    names = [topic.full_name(namespace) for topic in (POLICY_VERSIONS, TRAINING_STEPS)]
    return [decode_ledger_record(frame) for name in names for frame in await read_all(connection, name)]


def decode_ledger_record(frame: Frame) -> LedgerRecord:
    """Return the record; raises DataLossError if it cannot be read: what it says was trained could be trained twice."""
    try:
        record: LedgerRecord = decode(frame.value)
    except RecordError as error:
        raise DataLossError(
            f"the ledger cannot be read at offset {frame.offset} of {frame.topic}: {error}. If a newer release wrote "
            "the record, update rollbus; otherwise what was trained is not known: replay the episodes into a namespace "
            "of their own (`rollbus replay --help`) and train there"
        ) from error
    return record


class View(ABC):
    """A view of a topic's records, in their order."""

    @abstractmethod
    def add_record(self, frame: Frame) -> None:
        """Keep what matters in one record."""


class Follower:
    """Reads topics on to their committed ends at every call: over one connection, and all of them by one question."""

    def __init__(
        self, connection: KafkaConnection, views: Mapping[str, View], partitions: Mapping[str, int] | None = None
    ) -> None:
        """Follow each topic with its view; `partitions` gives their numbers, 1 by default."""
        self._connection = connection
        self._views = views
        counts = partitions or {}
        self._partitions = [TopicPartition(topic, number) for topic in views for number in range(counts.get(topic, 1))]
        self._consumer: AIOKafkaConsumer | None = None
        self._one_reader = asyncio.Lock()
        self._begun = self._ended = 0
        """Numbers of the newest reading, and of the newest that ended."""

    async def read_on(self) -> None:
        """Read every record committed since; calls at the same time share one reading."""
        before = self._begun
        await asyncio.sleep(0)
        async with self._one_reader:
            if self._ended > before:
                return  # another reading began after this call
            self._begun = look = self._begun + 1
            with kafka_errors(self._connection, f"reading {', '.join(self._views)}"):
                consumer = self._consumer or await self._open()
                async for record in read_on(consumer, await consumer.end_offsets(self._partitions)):
                    if record.value is not None:
                        self._views[record.topic].add_record(
                            Frame(record.topic, record.offset, record.key, record.value)
                        )
            self._ended = look

    async def close(self) -> None:
        """Close the connection; keep what was read."""
        consumer, self._consumer = self._consumer, None
        await stop_clients(consumer)

    async def _open(self) -> AIOKafkaConsumer:
        consumer = self._consumer = await start_client(new_reader(self._connection, fetch_max_wait_ms=SHORT_WAIT_MS))
        consumer.assign(self._partitions)
        consumer.pause(*self._partitions)
        await consumer.seek_to_beginning()
        return consumer


async def show_committed(connection: KafkaConnection, topic: str, view: View) -> None:
    """Show a view all that is committed now in a topic of one partition."""
    follower = Follower(connection, {topic: view})
    try:
        await follower.read_on()
    finally:
        await follower.close()


class Exclusions(View):
    """The episodes that `scores` and `exclusions` exclude from training."""

    def __init__(self) -> None:
        self.episodes: set[str] = set()

    def add_record(self, frame: Frame) -> None:
        """Keep the episode of a record that excludes one."""
        exclusion = decode_if(frame.value, Excluded)
        score = decode_if(frame.value, Score)
        if exclusion is not None:
            self.episodes.add(exclusion.episode_id)
        elif score is not None and score.excluded:
            self.episodes.add(score.episode_id)


class Pauses(View):
    """The pause and the stop that hold for a run, by `run-log`. Groups, which are most of it, are not decoded."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self.standing: RunCommand | None = None
        self.stop: RunCommand | None = None

    def add_record(self, frame: Frame) -> None:
        """Keep a command to the run."""
        if frame.key == self._run_id.encode() and (command := decode_if(frame.value, RunCommand)) is not None:
            self.standing = find_pause([pause for pause in (self.standing, command) if pause is not None])
            self.stop = find_stop([stop for stop in (self.stop, command) if stop is not None])


class Evaluations(View):
    """The evaluations of a model's versions, the first measurement first: partitions have no order between them."""

    def __init__(self, model: str) -> None:
        self._model = model
        self.records: list[Evaluation] = []

    def add_record(self, frame: Frame) -> None:
        """Keep those of the model."""
        evaluation = decode_if(frame.value, Evaluation)
        if evaluation is not None and evaluation.model == self._model:
            bisect.insort(self.records, evaluation, key=lambda record: record.evaluated_at_ms)
