"""The Kafka transactions of one stage in one process: its partitions share them, and they follow one another.

A small transaction costs broker and worker as much as a large one. So a partition that has something to write while a
transaction is under way waits for the next, together with all others that do; and each waits a moment for those that
are about to. Outputs, changelog rows and offsets of a partition are in one transaction, whole.
A session is one life of the producer. Any failure ends it for all partitions, and each opens again with the next
session. After a failure a partition's first transaction is its own, so that a batch that can never be written shows
which partition it comes from.
"""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import accumulate, takewhile

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import InvalidProducerEpoch, ProducerFenced

from rollbus.runtime.cancelling import is_being_cancelled
from rollbus.runtime.kafka.clients import new_transactional_producer, start_uncancelled, stop_producer
from rollbus.runtime.kafka.shared_reading import SharedReading
from rollbus.runtime.kafka.writing import Row, partition_count, write
from rollbus.runtime.tasks import start_task
from rollbus.schemas.errors import UnavailableError
from rollbus.streams.exactly_once.batch import Partition
from rollbus.streams.exactly_once.claims import Committed
from rollbus.streams.kafka.settings import StreamSettings

MOST_BYTES = 4 * 1_048_576
"""Of one transaction with the parts of several partitions: the readers that it holds back must not wait for long."""
STEP_S = 0.02
"""How long a transaction waits for the steps of other partitions, beyond their `linger_ms`."""
CLOSE_S = 2.0
"""How long a session that is closed waits for its running transaction."""
FENCED = (ProducerFenced, InvalidProducerEpoch)
_CLOSED_MESSAGE = "the partitions were given back"
_OTHERS_FAILED_MESSAGE = "a transaction of other partitions has failed, and with it the producer that all of them share"


@dataclass(frozen=True, slots=True, eq=False)
class PartitionPart:
    """What one input partition adds to a transaction."""

    partition: Partition
    end: int
    """The input position after it."""
    rows: list[Row]
    size: int
    """Of the rows, in bytes."""
    done: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


def new_producer(settings: StreamSettings, transactional_id: str) -> AIOKafkaProducer:
    """Return a producer whose start fences every older one of the same id and ends what that one left open."""
    return new_transactional_producer(settings.kafka, transactional_id, settings.transaction_timeout_s)


class ProducerSession:
    """One life of a stage's producer, from its start to its first failure."""

    def __init__(
        self, settings: StreamSettings, group: str, transactional_id: str, *, after_failure: bool = False
    ) -> None:
        self.id = transactional_id
        self._after_failure = after_failure
        self._ends: dict[Partition, int] = {}
        self._ended: Exception | None = None
        """The error that its other users receive after a failure; nothing more is written then."""
        self._settings, self._group = settings, group
        self._producer = new_producer(settings, transactional_id)
        self._waiting: list[PartitionPart] = []
        self._writing: asyncio.Task[None] | None = None
        self._preparing = 0
        """Partitions at work on what they will write."""
        self._prepared = asyncio.Event()
        self._counts: dict[str, int] = {}
        self._fenced: set[str] = set()
        self._fencing = asyncio.Lock()

    @property
    def ended(self) -> bool:
        """Whether it accepts nothing more."""
        return self._ended is not None

    def end_of(self, partition: Partition) -> int | None:
        """Return the input position that it committed last, if any; readers may see it a little later."""
        return self._ends.get(partition)

    async def start(self) -> None:
        """Connect; this ends what an earlier life of the same id left open."""
        await start_uncancelled(self._producer.start)

    async def stop(self) -> None:
        """Wait a moment for the running transaction, then disconnect. Its successor ends what is left open."""
        self._ended = self._ended or UnavailableError(_CLOSED_MESSAGE)
        if self._writing is not None:
            await asyncio.wait([self._writing], timeout=CLOSE_S)
            self._writing.cancel()
        _fail_parts(self._waiting, self._ended)
        await stop_producer(self._producer)

    async def fence(self, owner: str) -> None:
        """Stop the producers of another id from writing, and end what they left open."""
        async with self._fencing:
            if owner in self._fenced:
                return
            successor = new_producer(self._settings, owner)
            try:
                await start_uncancelled(successor.start)
            finally:
                await stop_producer(successor)
            self._fenced.add(owner)

    async def partition_count(self, topic: str) -> int:
        """Return how many partitions a topic has."""
        count = self._counts.get(topic)
        if count is None:
            count = self._counts[topic] = await partition_count(self._producer, topic)
        return count

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Mark that a partition prepares what it may write: a transaction waits a moment for it."""
        self._preparing += 1
        try:
            yield
        finally:
            self._preparing -= 1
            self._prepared.set()

    async def commit(self, partition: Partition, end: int, rows: list[Row]) -> None:
        """Write a partition's rows and offset in the next transaction; raises what that one fails with."""
        if self._ended is not None:
            raise self._ended.with_traceback(None)  # one error for all, to which each raise adds its frames
        part = PartitionPart(partition, end, rows, sum(len(row.value or b"") for row in rows))
        self._waiting.append(part)
        if self._writing is None or self._writing.done():
            self._writing = start_task(self._write_all(), f"transactions {self.id}", endless=False)
        await part.done

    async def _write_all(self) -> None:
        while self._waiting and not self.ended:
            await self._wait_for_preparing()
            parts = self._next_parts()
            try:
                if parts:
                    await self._write(parts)
            except BaseException as error:  # whatever it is, its partitions wait for the news
                self._ended = error if isinstance(error, FENCED) else UnavailableError(_OTHERS_FAILED_MESSAGE)
                _fail_parts(parts, error)
                _fail_parts(self._waiting, self._ended)
                if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                    raise
            else:
                self._ends.update({part.partition: part.end for part in parts})
                _complete_parts(parts)

    async def _wait_for_preparing(self) -> None:
        """Wait for partitions that have records already, while these linger and take their step.

        Without this they would take turns for ever: partitions too late for one transaction are ready when it has
        ended, and go into the next without those that were in it.
        """
        now = asyncio.get_running_loop().time
        deadline = now() + self._settings.linger_ms / 1000 + STEP_S
        while self._preparing and (remaining := deadline - now()) > 0:
            self._prepared.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._prepared.wait(), remaining)

    def _next_parts(self) -> list[PartitionPart]:
        """Return the parts of the next transaction, in order of arrival; at least one."""
        waiting = [part for part in self._waiting if not part.done.done()]
        sizes = accumulate(part.size for part in waiting)
        count = max(1, sum(size <= MOST_BYTES for size in sizes))
        if self._after_failure:
            proven = takewhile(lambda part: part.partition in self._ends, waiting)
            count = min(count, max(1, sum(1 for _ in proven)))
        self._waiting = waiting[count:]
        return waiting[:count]

    async def _write(self, parts: list[PartitionPart]) -> None:
        """Write one transaction.

        Step after step: a broker that is adding the offsets to a transaction refuses its rows for a while.
        """
        offsets = {TopicPartition(*part.partition): (part.end, Committed(part.end, self.id).note) for part in parts}
        async with asyncio.timeout(self._settings.transaction_timeout_s):
            await self._producer.begin_transaction()
            await write(self._producer, [row for part in parts for row in part.rows])
            await self._producer.send_offsets_to_transaction(offsets, self._group)
            await self._producer.commit_transaction()


class ProducerSessions:
    """What the partitions of a stage share while they are assigned to this process: one session at a time."""

    def __init__(self, settings: StreamSettings, group: str, transactional_id: str) -> None:
        self._settings, self._group, self._id = settings, group, transactional_id
        self._session: ProducerSession | None = None
        self._lock = asyncio.Lock()
        self.reading = SharedReading(settings.kafka)
        """Of the changelogs of partitions that open."""

    async def get(self) -> ProducerSession:
        """Return the session, or a new one if the last has ended."""
        async with self._lock:
            if self._session is None or self._session.ended:
                after_failure = self._session is not None
                await self._stop()
                session = ProducerSession(self._settings, self._group, self._id, after_failure=after_failure)
                try:
                    await session.start()
                except BaseException:
                    await session.stop()
                    raise
                self._session = session
            return self._session

    async def close(self) -> None:
        """End the session, and the reading."""
        await self.reading.close()
        async with self._lock:
            await self._stop()

    async def _stop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.stop()


def _complete_parts(parts: Iterable[PartitionPart]) -> None:
    for part in parts:
        if not part.done.done():
            part.done.set_result(None)


def _fail_parts(parts: Iterable[PartitionPart], error: BaseException) -> None:
    for part in parts:
        if isinstance(error, asyncio.CancelledError):
            part.done.cancel()
        elif not part.done.done():
            part.done.set_exception(error)
