"""The trainer's log on a real broker: a transactional producer per model, batches by committed offset, payload by seek.

The transactional id names the model, so the broker itself lets only the newest trainer of a model write.
"""

import asyncio
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import IllegalOperation, OffsetOutOfRangeError

from rollbus.schemas.chunks import split
from rollbus.schemas.codec import decode, encode
from rollbus.schemas.control import RunCommand
from rollbus.schemas.drops import DeadLetter
from rollbus.schemas.errors import DataLossError, RecordError, UnavailableError
from rollbus.schemas.groups import TrainingBatch
from rollbus.schemas.joining import Whole
from rollbus.schemas.kafka_connection import KafkaConnection
from rollbus.schemas.payload_kafka import KafkaPayload
from rollbus.schemas.steps import Evaluation
from rollbus.schemas.stopping_kafka import stop_quietly
from rollbus.schemas.topics import (
    BATCHES,
    DEAD_LETTERS,
    DROPS,
    EVALUATIONS,
    EXCLUSIONS,
    MAX_MESSAGE_BYTES,
    POLICY_VERSIONS,
    RUN_LOG,
    SCORES,
    TRAINING_STEPS,
    TRAJECTORIES,
    Topic,
)
from rollbus.schemas.trajectories import Location, Trajectory
from rollbus.trainer.connection_kafka import IDLE_FETCH_WAIT_MS, kafka_errors, partition_counts, reader_options
from rollbus.trainer.joining import Joiner
from rollbus.trainer.ledger import LedgerRecord
from rollbus.trainer.log import LastRecords, NextBatch, Publication, names
from rollbus.trainer.reading_kafka import Evaluations, Exclusions, Follower, Pauses, read_all

T = TypeVar("T")
logger = logging.getLogger(__name__)

STAGE = "trainer"
TRANSACTION_TIMEOUT_MS = 10_000
"""An open transaction holds back every reader of committed records; ours take well under a second, and at most
`step.LONGEST_LOOK_S` more."""
_TOPICS: tuple[Topic, ...] = (
    *(BATCHES, TRAINING_STEPS, POLICY_VERSIONS, RUN_LOG, DROPS, DEAD_LETTERS, SCORES, TRAJECTORIES, EVALUATIONS),
    EXCLUSIONS,
)


class KafkaLog:
    """Fulfils `TrainerLog`."""

    def __init__(
        self, connection: KafkaConnection, *, namespace: str, run_id: str, model: str, batches_from: str | None = None
    ) -> None:
        """Take the batches of another namespace where one is named: a replay's."""
        self._connection = connection
        self._namespace = namespace
        self._run_id = run_id
        self._group = f"{namespace}{STAGE}.{run_id}"
        self._transactional_id = f"{namespace}{STAGE}.{model}"
        self._batches = TopicPartition(BATCHES.full_name(batches_from or namespace), 0)
        self._joiner = Joiner()
        self._payload = KafkaPayload(connection, namespace)
        self._model = model
        self._exclusions, self._pauses, self._evaluations = Exclusions(), Pauses(run_id), Evaluations(model)
        self._control: Follower | None = None
        """Of exclusions and pauses."""
        self._measured: Follower | None = None
        """Of evaluations."""
        self._producer: AIOKafkaProducer | None = None
        self._consumer: AIOKafkaConsumer | None = None

    async def open(self) -> None:
        """Fence the trainer before (InitProducerId), only then read the committed offset, then go there."""
        await self.close()
        counts = await partition_counts(self._connection, [topic.full_name(self._namespace) for topic in _TOPICS])
        self._follow(counts)
        with kafka_errors("opening the trainer's log"):
            self._producer = AIOKafkaProducer(
                **self._connection.client_options(),
                transactional_id=self._transactional_id,
                transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
                max_request_size=MAX_MESSAGE_BYTES,
                compression_type="zstd",
            )
            await self._producer.start()
            self._consumer = AIOKafkaConsumer(
                **reader_options(self._connection) | {"fetch_max_wait_ms": IDLE_FETCH_WAIT_MS}, group_id=self._group
            )
            await self._consumer.start()
            self._consumer.assign([self._batches])
            committed = await self._consumer.committed(self._batches)
            if committed is None:
                await self._consumer.seek_to_beginning(self._batches)
            else:
                self._consumer.seek(self._batches, committed)
        self._joiner = Joiner()

    async def read_ledger(self) -> Sequence[LedgerRecord]:
        """Read both topics to their committed end; a record that cannot be read stops the trainer."""
        records: list[LedgerRecord] = []
        for topic in (POLICY_VERSIONS, TRAINING_STEPS):
            frames = await read_all(self._connection, topic.full_name(self._namespace))
            records.extend(decode(frame.value) for frame in frames)
        return records

    async def next_batch(self, timeout_s: float, *, settle_broken: bool = True) -> NextBatch | None:
        """Return the next batch; bytes under this run's key that are no batch go to the dead letters."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            remaining_ms = max(0, int((deadline - asyncio.get_running_loop().time()) * 1000))
            with kafka_errors(f"reading {self._batches.topic}"), self._no_gap():
                polled = await _opened(self._consumer).getmany(self._batches, timeout_ms=remaining_ms, max_records=1)
            records = polled.get(self._batches, [])
            if not records and remaining_ms == 0:
                return None
            for record in records:
                if record.key != self._run_id.encode() or record.value is None:
                    continue
                whole: Whole[int] | None = Whole(record.value, record.offset)
                try:
                    whole = self._joiner.add(record.value, record.offset)
                    batch = None if whole is None else decode(whole.data)
                    if isinstance(batch, TrainingBatch):
                        return NextBatch(batch, record.offset + 1)
                except RecordError as error:
                    assert whole is not None
                    if not settle_broken:
                        _opened(self._consumer).seek(self._batches, whole.place)
                        return None
                    await self._dead_letter(whole, record, error)

    async def at_end(self) -> bool:
        """Compare the position, which also passes the marks of commits, with the last committed offset."""
        consumer = _opened(self._consumer)
        with kafka_errors(f"asking for the end of {self._batches.topic}"):
            ends = await consumer.end_offsets([self._batches])
            return bool(await consumer.position(self._batches) >= ends[self._batches])

    async def publish(
        self,
        publications: Sequence[Publication],
        *,
        last: LastRecords | None = None,
        next_offset: int | None = None,
    ) -> Sequence[Publication]:
        """One transaction: send the records, await every acknowledgement, then the offset and its own, commit.

        Not both at once: of each the broker asks the coordinator whether it belongs to the transaction, and of two such
        questions at a time it gives one up: one step in fifteen then waited 100 ms and more.

        After an error the producer is thrown away: whether the commit arrived is not known; the next `open` finds out.
        """
        producer = _opened(self._producer)
        what = f"publishing {names(publications) or 'an offset'}"
        try:
            with kafka_errors(what):
                await producer.begin_transaction()
                written = await self._send_all(producer, publications, last)
                if next_offset is not None:
                    await producer.send_offsets_to_transaction({self._batches: next_offset}, self._group)
                await producer.commit_transaction()
        except BaseException:
            self._producer = None
            await stop_quietly(producer.stop)
            raise
        return written

    async def fetch(self, locations: Collection[Location]) -> Mapping[Location, Trajectory]:
        """Read payload by location."""
        return await self._payload.fetch(locations)

    async def excluded_episodes(self) -> Collection[str]:
        """Read on in `scores`, and in the list of who is to be forgotten."""
        if self._control is not None:
            await self._control.read_on()
        return set(self._exclusions.episodes)

    async def paused(self) -> RunCommand | None:
        """Read on in `run-log`."""
        if self._control is not None:
            await self._control.read_on()
        return self._pauses.standing

    async def evaluations(self) -> Sequence[Evaluation]:
        """Read on in `evaluations`."""
        if self._measured is not None:
            await self._measured.read_on()
        return self._evaluations.found

    async def close(self) -> None:
        """Let every connection go; an open transaction is aborted by the broker or the next trainer."""
        producer, consumer = self._producer, self._consumer
        self._producer = self._consumer = None
        for client in (producer, consumer):
            if client is not None:
                await stop_quietly(client.stop)
        for reader in (self._payload, self._control, self._measured):
            if reader is not None:
                await stop_quietly(reader.close)

    @contextmanager
    def _no_gap(self) -> Iterator[None]:
        """DataLossError where the place of the next batch is not in the topic any more: trying again finds none."""
        try:
            yield
        except OffsetOutOfRangeError as error:
            topic = self._batches.topic
            raise DataLossError(
                f"{topic} does not hold offset {error.args[0][self._batches]}, where run {self._run_id!r} goes on: "
                f"records of it were deleted, or the topic was made anew. Bring them back; or, to train what is left, "
                f"set the offset of consumer group {self._group} in {topic} to its earliest with kafka-consumer-groups"
            ) from error

    def _follow(self, partitions: Mapping[str, int]) -> None:
        """Begin at the beginning of what is followed."""
        self._exclusions, self._pauses = Exclusions(), Pauses(self._run_id)
        self._evaluations = Evaluations(self._model)
        scores, exclusions, run_log, evaluations = (
            topic.full_name(self._namespace) for topic in (SCORES, EXCLUSIONS, RUN_LOG, EVALUATIONS)
        )
        views = {scores: self._exclusions, exclusions: self._exclusions, run_log: self._pauses}
        self._control = Follower(self._connection, views, partitions)
        self._measured = Follower(self._connection, {evaluations: self._evaluations}, partitions)

    async def _send_all(
        self, producer: AIOKafkaProducer, publications: Sequence[Publication], last: LastRecords | None
    ) -> Sequence[Publication]:
        """Return once the broker has all of them; the first are on their way before `last` is asked."""
        waiting: list[asyncio.Future[Any]] = []
        try:
            await self._send(producer, publications, waiting)
            if last is not None:
                more = await last()
                await self._send(producer, more, waiting)
                publications = (*publications, *more)
        except IllegalOperation:  # something ended the transaction meanwhile; what was sent before knows what
            await asyncio.gather(*waiting)
            raise
        except BaseException:
            for each in waiting:
                each.cancel()
            raise
        await asyncio.gather(*waiting)
        return publications

    async def _send(
        self, producer: AIOKafkaProducer, publications: Sequence[Publication], waiting: list[asyncio.Future[Any]]
    ) -> None:
        for publication in publications:
            topic = publication.topic.full_name(self._namespace)
            for frame in split(encode(publication.record)):
                sent = await producer.send(topic, frame, key=publication.key.encode())
                waiting.append(sent)

    async def _dead_letter(self, whole: Whole[int], last: Any, error: RecordError) -> None:
        logger.error("batch at offset %d of %s cannot be read: %s", whole.place, self._batches.topic, error)
        letter = DeadLetter(
            topic=self._batches.topic,
            partition=self._batches.partition,
            offset=whole.place,
            timestamp_ms=last.timestamp,
            key=last.key,
            value=whole.data,
            stage=STAGE,
            error_class=type(error).__name__,
            message=str(error),
        )
        await self.publish((Publication(DEAD_LETTERS, self._run_id, letter),), next_offset=last.offset + 1)


def _opened(client: T | None) -> T:
    if client is None:
        raise UnavailableError("the trainer's log is not open")
    return client
