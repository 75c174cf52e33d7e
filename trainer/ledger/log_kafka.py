"""The trainer's log on a real broker: a transactional producer per model, batches by committed offset, payload by seek.

The transactional id names the model, so the broker itself lets only the newest trainer of a model write.
"""

import asyncio
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import IllegalOperation, OffsetOutOfRangeError

from rollbus.runtime.kafka.clients import (
    kafka_errors,
    new_consumer,
    new_transactional_producer,
    start_client,
    stop_all,
    stop_clients,
)
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.kafka.partitions import require_topics
from rollbus.runtime.kafka.payload import KafkaPayload
from rollbus.runtime.kafka.positions import Position
from rollbus.runtime.kafka.reading import read_ends
from rollbus.runtime.log_mark import LogMark
from rollbus.schemas.codec import decode, encode
from rollbus.schemas.errors import DataLossError, FencedError, RecordError, UnavailableError
from rollbus.schemas.records.control import RunCommand
from rollbus.schemas.records.drops import DeadLetter, kept_bytes
from rollbus.schemas.records.groups import TrainingBatch
from rollbus.schemas.records.steps import Evaluation
from rollbus.schemas.records.trajectories import Location, RewardRevised, Score, Trajectory
from rollbus.schemas.topics import (
    BATCHES,
    DEAD_LETTERS,
    DELIVERY_LOG,
    DROPS,
    EVALUATIONS,
    EXCLUSIONS,
    POLICY_VERSIONS,
    RUN_LOG,
    SCORES,
    TRAINING_STEPS,
    TRAJECTORIES,
    Topic,
)
from rollbus.trainer.ledger.batch_positions_kafka import STAGE, batch_positions
from rollbus.trainer.ledger.claim_kafka import ModelClaim
from rollbus.trainer.ledger.ledger import LedgerRecord
from rollbus.trainer.ledger.log import LastRecords, Publication, ReceivedBatch, names
from rollbus.trainer.ledger.reading_kafka import Evaluations, Exclusions, Follower, Pauses, read_ledger

T = TypeVar("T")
logger = logging.getLogger(__name__)

TRANSACTION_TIMEOUT_S = 10.0
"""An open transaction holds back every reader of committed records; ours take under a second, and at most
`step.LONGEST_LOOK_S` more."""
_TOPICS: tuple[Topic, ...] = (
    *(BATCHES, TRAINING_STEPS, POLICY_VERSIONS, RUN_LOG, DROPS, DEAD_LETTERS, SCORES, TRAJECTORIES, EVALUATIONS),
    *(EXCLUSIONS, DELIVERY_LOG),
)


class KafkaTrainerLog:
    """Fulfils `TrainerLog`."""

    def __init__(
        self, connection: KafkaConnection, *, namespace: str, run_id: str, model: str, batches_from: str | None = None
    ) -> None:
        """Take the batches of `batches_from`, the namespace of a replay, if it is given."""
        self._connection = connection
        self._namespace = namespace
        self._run_id = run_id
        self._transactional_id = f"{namespace}{STAGE}.{model}"
        self._batches = TopicPartition(BATCHES.full_name(batches_from or namespace), 0)
        self._payload = KafkaPayload(connection, namespace)
        self._positions = batch_positions(connection, namespace, run_id, batches_from)
        self._mark = LogMark("", "")
        """Of the last batch whose offset was committed."""
        self._taken: dict[int, LogMark] = {}
        """Of the batches that were handed out, by the offset that is committed with each."""
        self._model = model
        own_place = TopicPartition(BATCHES.full_name(namespace), 0)
        self._claim = ModelClaim(connection, own_place, f"{namespace}{STAGE}", model=model, run=run_id)
        self._exclusions, self._pauses, self._evaluations = Exclusions(), Pauses(run_id), Evaluations(model)
        self._control: Follower | None = None
        """Reads exclusions and pauses."""
        self._measured: Follower | None = None
        """Reads evaluations."""
        self._producer: AIOKafkaProducer | None = None
        self._consumer: AIOKafkaConsumer | None = None

    async def stand_by(self) -> None:
        """Join the group of the model's trainers, and wait for those before."""
        with self._kafka_errors("asking who trains the model"):
            await self._claim.stand_by()

    async def open(self) -> None:
        """Fence the trainer before (InitProducerId), claim the model, then read the committed offset and go there."""
        await self.close()
        counts = await require_topics(self._connection, [topic.full_name(self._namespace) for topic in _TOPICS])
        self._follow(counts)
        with self._kafka_errors("opening the trainer's log"):
            await self._claim.require()
            producer = new_transactional_producer(self._connection, self._transactional_id, TRANSACTION_TIMEOUT_S)
            self._producer = await start_client(producer)
            await self._claim.claim(self._producer)
            self._consumer = await start_client(new_consumer(self._connection, group_id=self._positions.group))
            self._consumer.assign([self._batches])
            position = (await self._positions.open([self._batches]))[self._batches]
            self._mark, self._taken = position.mark, {}
            if position.offset is None:
                await self._consumer.seek_to_beginning(self._batches)
            else:
                self._consumer.seek(self._batches, position.offset)

    async def require_charge(self) -> None:
        """Ask the broker for the claim."""
        with self._kafka_errors("asking who trains the model"):
            await self._claim.require()

    async def read_ledger(self) -> Sequence[LedgerRecord]:
        """Read both topics to their committed end."""
        return await read_ledger(self._connection, self._namespace)

    async def next_batch(self, timeout_s: float, *, skip_unreadable: bool = True) -> ReceivedBatch | None:
        """Return the next batch; bytes under this run's key that are not a batch go to the dead letters."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            remaining_ms = max(0, int((deadline - asyncio.get_running_loop().time()) * 1000))
            with self._kafka_errors(f"reading {self._batches.topic}"), self._no_gap():
                polled = await _require_open(self._consumer).getmany(
                    self._batches, timeout_ms=remaining_ms, max_records=1
                )
            records = polled.get(self._batches, [])
            if not records and remaining_ms == 0:
                return None
            for record in records:
                if record.key != self._run_id.encode() or record.value is None:
                    continue
                try:
                    batch = decode(record.value)
                    if isinstance(batch, TrainingBatch):
                        self._taken[record.offset + 1] = self._mark.after([record])
                        return ReceivedBatch(batch, record.offset + 1)
                except RecordError as error:
                    if not skip_unreadable:
                        _require_open(self._consumer).seek(self._batches, record.offset)
                        return None
                    await self._dead_letter(record, error)

    async def at_end(self) -> bool:
        """Compare the position, which also passes the marks of commits, with the end of all records."""
        consumer, activity = _require_open(self._consumer), f"asking for the end of {self._batches.topic}"
        ends = await read_ends(self._connection, [self._batches], what=activity)
        with self._kafka_errors(activity):
            return bool(await consumer.position(self._batches) >= ends[self._batches])

    async def publish(
        self,
        publications: Sequence[Publication],
        *,
        last: LastRecords | None = None,
        next_offset: int | None = None,
    ) -> Sequence[Publication]:
        """One transaction: send the records, await every acknowledgement, then the offset and its own, commit.

        Records first, then the offset: the broker asks the coordinator about each, and gives up one of two questions
        at a time; one step in fifteen then waited 100 ms and more.

        After an error the producer is thrown away: the commit may have arrived or not, and the next `open` finds out.
        """
        producer = _require_open(self._producer)
        activity = f"publishing {names(publications) or 'an offset'}"
        try:
            with self._kafka_errors(activity):
                await producer.begin_transaction()
                written_records = await self._send_all(producer, publications, last)
                if next_offset is not None:
                    position = Position(next_offset, self._taken.get(next_offset, self._mark))
                    await producer.send_offsets_to_transaction(
                        {self._batches: position.committed}, self._positions.group
                    )
                await producer.commit_transaction()
        except BaseException as error:
            self._producer = None
            await stop_clients(producer)
            if isinstance(error, FencedError):
                await self.require_charge()  # the claim decides, and says who it is
                raise UnavailableError(
                    f"{activity}: a process that has ended since had the producer; opening again"
                ) from error
            raise
        if next_offset is not None:
            self._mark = self._taken.pop(next_offset, self._mark)
        return written_records

    async def fetch(self, locations: Collection[Location]) -> Mapping[Location, Trajectory]:
        """Read payload by location."""
        return await self._payload.fetch(locations)

    async def fetch_revisions(self, locations: Collection[Location]) -> Mapping[Location, RewardRevised]:
        """Read revisions of rewards by location."""
        return await self._payload.fetch_revisions(locations)

    async def fetch_scores(self, locations: Collection[Location]) -> Mapping[Location, Score]:
        """Read scores by location."""
        return await self._payload.fetch_scores(locations)

    async def excluded_episodes(self) -> Collection[str]:
        """Read on in `scores` and in the list of exclusions."""
        if self._control is not None:
            await self._control.read_on()
        return set(self._exclusions.episodes)

    async def paused(self) -> RunCommand | None:
        """Read on in `run-log`."""
        if self._control is not None:
            await self._control.read_on()
        return self._pauses.standing

    async def stopped(self) -> RunCommand | None:
        """Return it as the last reading has it."""
        return self._pauses.stop

    async def evaluations(self) -> Sequence[Evaluation]:
        """Read on in `evaluations`."""
        if self._measured is not None:
            await self._measured.read_on()
        return self._evaluations.records

    async def close(self) -> None:
        """Let every connection go; an open transaction is aborted by the broker or the next trainer."""
        producer, consumer = self._producer, self._consumer
        self._producer = self._consumer = None
        await stop_clients(producer, consumer)
        await self._claim.disconnect()
        for reader in (self._payload, self._control, self._measured):
            if reader is not None:
                await stop_all(reader.close)

    async def leave(self) -> None:
        """Close, and leave the group."""
        await self.close()
        await self._claim.leave()

    def _kafka_errors(self, what: str) -> AbstractContextManager[None]:
        return kafka_errors(self._connection, what, fenced="a newer trainer of this model has taken over")

    @contextmanager
    def _no_gap(self) -> Iterator[None]:
        """Raise DataLossError if the next batch is no longer in the topic: another try would not help."""
        try:
            yield
        except OffsetOutOfRangeError as error:
            topic = self._batches.topic
            raise DataLossError(
                f"{topic} does not hold offset {error.args[0][self._batches]}, where run {self._run_id!r} goes on: its "
                "records were deleted. Bring them back; or, to train what is left, "
                f"`{self._positions.accept_command}`"
            ) from error

    def _follow(self, partitions: Mapping[str, int]) -> None:
        """Read the followed topics from their beginning."""
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
        except IllegalOperation:  # something ended the transaction; the records sent before carry the reason
            await asyncio.gather(*waiting)
            raise
        except BaseException:
            for future in waiting:
                future.cancel()
            raise
        await asyncio.gather(*waiting)
        return publications

    async def _send(
        self, producer: AIOKafkaProducer, publications: Sequence[Publication], waiting: list[asyncio.Future[Any]]
    ) -> None:
        for publication in publications:
            topic = publication.topic.full_name(self._namespace)
            acknowledgement = await producer.send(topic, encode(publication.record), key=publication.key.encode())
            waiting.append(acknowledgement)

    async def _dead_letter(self, record: Any, error: RecordError) -> None:
        logger.error("batch at offset %d of %s cannot be read: %s", record.offset, self._batches.topic, error)
        letter = DeadLetter(
            topic=self._batches.topic,
            partition=self._batches.partition,
            offset=record.offset,
            timestamp_ms=record.timestamp,
            **kept_bytes(record.key, record.value),
            stage=STAGE,
            error_class=type(error).__name__,
            message=str(error),
        )
        self._taken[record.offset + 1] = self._mark.after([record])
        await self.publish((Publication(DEAD_LETTERS, self._run_id, letter),), next_offset=record.offset + 1)


def _require_open(client: T | None) -> T:
    if client is None:
        raise UnavailableError("the trainer's log is not open")
    return client
