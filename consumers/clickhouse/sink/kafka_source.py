"""Every topic of a namespace, read as one member of the sink's consumer group: committed records, positions, commits.

After each assignment every partition is read from its committed offset, and what was fetched before does not count.
`generation` grows with each change of the assignment; the sink then throws its buffers away. If retention has deleted
records before they were read, the log names them, and no range covers them.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiokafka import ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError, OffsetOutOfRangeError

from rollbus.consumers.clickhouse.store.origin import KafkaRecord
from rollbus.consumers.clickhouse.store.settings import SinkSettings
from rollbus.runtime.kafka.clients import kafka_errors, new_consumer, start_client, stop_clients
from rollbus.runtime.kafka.patience import set_fetch_wait
from rollbus.runtime.kafka.positions import Position, Positions, commit_marks
from rollbus.runtime.log_mark import LogMark
from rollbus.schemas.record_makers import maker
from rollbus.schemas.topics import TOPICS

logger = logging.getLogger(__name__)

METADATA_MAX_AGE_MS = 5_000
"""How long it takes to notice a new topic."""
FETCH_WAIT_MS, IDLE_FETCH_WAIT_MS = 500, 6_000
"""How long the broker holds a fetch that finds nothing, the second after IDLE_POLLS polls that brought nothing."""
IDLE_POLLS = 3
FETCH_ROUTINE_MS = 10_000
"""How long aiokafka's fetching sleeps at most; whatever gives it work wakes it before."""
MAX_RECORDS = 5_000
"""Of one poll; the sink checks its limits between polls."""

_make_record = maker(KafkaRecord)

Partition = tuple[str, int]
"""Topic without the namespace, and number."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """What one poll brought."""

    generation: int
    starts: Mapping[Partition, int]
    """Partitions that are new, and where their reading begins."""
    ends: Mapping[Partition, int]
    """The end of each of these partitions at that time."""
    records: tuple[KafkaRecord, ...]
    """Per partition in order of offsets."""
    positions: Mapping[Partition, int]
    """The next offset of each partition after these records."""
    moved: Mapping[Partition, int] = field(default_factory=dict)
    """Partitions whose next records are gone, and the offset where reading goes on."""
    resumed: Mapping[Partition, int] = field(default_factory=dict)
    """Of the new partitions, those of which the log still has records from before the committed offset."""
    marks: Mapping[Partition, LogMark] = field(default_factory=dict)
    """Of the new partitions: which log each is, and the last record before its start."""


ReadMarks = Callable[[], Awaitable[Mapping[Partition, LogMark]]]
"""Returns the newest mark of each partition that the database has noted."""


def sink_positions(settings: SinkSettings) -> Positions:
    """Return the positions of the sink's group."""
    return Positions(settings.kafka, settings.group_id, "rollbus sink accept-loss", passes_expired=True)


class KafkaSinkSource(ConsumerRebalanceListener):  # type: ignore[misc]
    """The consumer behind the sink."""

    def __init__(self, settings: SinkSettings, read_marks: ReadMarks | None = None) -> None:
        """Nothing connects before `start`."""
        self.generation = 0
        self._positions, self._read_marks = sink_positions(settings), read_marks
        self._settings = settings
        self._names = {topic.full_name(settings.namespace): topic.name for topic in TOPICS}
        self._assigned: set[TopicPartition] = set()
        self._empty_polls = 0
        self._consumer: Any = None

    @property
    def topics(self) -> list[str]:
        """Return the full names of the topics that are read."""
        return list(self._names)

    async def start(self) -> None:
        """Connect and join the group; raises UnavailableError."""
        consumer = self._consumer = new_consumer(
            self._settings.kafka,
            group_id=self._settings.group_id,
            client_id=f"{self._settings.namespace}sink",
            metadata_max_age_ms=METADATA_MAX_AGE_MS,
            fetch_max_wait_ms=FETCH_WAIT_MS,
            consumer_timeout_ms=FETCH_ROUTINE_MS,
            max_poll_interval_ms=600_000,
        )
        consumer.subscribe(self.topics, listener=self)
        with kafka_errors(self._settings.kafka):
            await start_client(consumer)

    async def stop(self) -> None:
        """Leave the group."""
        await stop_clients(self._consumer)

    async def poll(self, timeout_s: float) -> Fetched:
        """Return the records that came within the time; raises UnavailableError."""
        generation = self.generation
        try:
            starts, ends, resumed, marks = await self._seek_new()
            fetched, moved_starts = await self._fetch(timeout_s)
            self._empty_polls = 0 if fetched or starts or moved_starts else self._empty_polls + 1
            is_idle = self._empty_polls >= IDLE_POLLS
            set_fetch_wait(self._consumer, IDLE_FETCH_WAIT_MS if is_idle else FETCH_WAIT_MS)
            positions = {self._partition(tp): await self._consumer.position(tp) for tp in self._assigned}
        except (KafkaError, IllegalStateError) as error:
            if generation != self.generation:
                return Fetched(self.generation, {}, {}, (), {})
            self.read_again()
            raise self._settings.kafka.unavailable(error) from error
        if generation != self.generation:
            return Fetched(self.generation, {}, {}, (), {})
        records = tuple(
            _make_record(self._names[tp.topic], tp.partition, record.offset, record.timestamp, record.key, record.value)
            for tp, batch in fetched.items()
            for record in batch
        )
        return Fetched(generation, starts, ends, records, positions, moved_starts, resumed, marks)

    async def commit(self, positions: Mapping[Partition, Position]) -> bool:
        """Commit; False if another member owns a partition by now: then everything has to be read again."""
        by_partition = {
            TopicPartition(self._settings.namespace + topic, number): position.committed
            for (topic, number), position in positions.items()
        }
        try:
            await self._consumer.commit(by_partition)
        except (CommitFailedError, IllegalStateError) as error:
            logger.warning("offsets not committed, reading again error=%s", error)
            self.read_again()
            return False
        except KafkaError as error:
            raise self._settings.kafka.unavailable(error) from error
        return True

    def end_offset(self, partition: Partition) -> int:
        """Return the end of a partition as the broker last reported it; 0 if it has not yet."""
        tp = TopicPartition(self._settings.namespace + partition[0], partition[1])
        return (self._consumer.highwater(tp) or 0) if tp in self._assigned else 0

    def read_again(self) -> None:
        """Go back to the committed offset of every partition."""
        self.generation += 1
        self._assigned.clear()

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Forget the assignment; its next owner reads the buffered records again."""
        self.read_again()

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Take the new assignment; reading begins with the next poll."""
        self.read_again()

    async def _fetch(self, timeout_s: float) -> tuple[Mapping[TopicPartition, Any], Mapping[Partition, int]]:
        """Return records, or the partitions that moved."""
        try:
            return await self._consumer.getmany(timeout_ms=int(timeout_s * 1000), max_records=MAX_RECORDS), {}
        except OffsetOutOfRangeError as error:
            return {}, await self._skip_lost(error.args[0])

    async def _skip_lost(self, offsets: Mapping[TopicPartition, int]) -> dict[Partition, int]:
        """Go on at the beginning of partitions that do not have these offsets, and log the loss."""
        begins = await self._consumer.beginning_offsets(list(offsets))
        for tp, begin in begins.items():
            self._log_loss(tp, offsets[tp], begin)
            self._consumer.seek(tp, begin)
        return {self._partition(tp): begin for tp, begin in begins.items()}

    def _log_loss(self, tp: TopicPartition, offset: int, begin: int) -> None:
        topic, number = self._partition(tp)
        if begin > offset:
            logger.error(
                "records %d to %d of %s:%d were deleted by Kafka's retention before they were written; "
                "`rollbus sql run is_anything_lost` counts the hole",
                *(offset, begin - 1, topic, number),
            )
        else:
            logger.error("%s:%d has no offset %d, and is read again from %d", topic, number, offset, begin)

    async def _seek_new(
        self,
    ) -> tuple[dict[Partition, int], dict[Partition, int], dict[Partition, int], dict[Partition, LogMark]]:
        new = sorted(self._consumer.assignment() - self._assigned)
        if not new:
            return {}, {}, {}, {}
        generation = self.generation
        beginnings = await self._consumer.beginning_offsets(new)
        ends = await self._consumer.end_offsets(new)
        positions = await self._open_positions(new)
        if generation != self.generation:
            return {}, {}, {}, {}
        await commit_marks(self._consumer, positions)
        starts = {tp: max(positions[tp].offset or 0, beginnings[tp]) for tp in new}
        for tp, start in starts.items():
            offset = positions[tp].offset
            if offset is not None and offset < start:
                self._log_loss(tp, offset, start)
            self._consumer.seek(tp, start)
            self._assigned.add(tp)
        return (
            {self._partition(tp): start for tp, start in starts.items()},
            {self._partition(tp): ends[tp] for tp in new},
            {self._partition(tp): start for tp, start in starts.items() if start > beginnings[tp]},
            {self._partition(tp): positions[tp].mark for tp in new},
        )

    async def _open_positions(self, new: Collection[TopicPartition]) -> dict[TopicPartition, Position]:
        """Return where to go on; raises DataLossError where the log is not the one that was read."""
        marks = await self._read_marks() if self._read_marks is not None else {}
        witnesses = {tp: marks[self._partition(tp)] for tp in new if self._partition(tp) in marks}
        return await self._positions.open(new, witnesses)

    def _partition(self, tp: TopicPartition) -> Partition:
        return self._names[tp.topic], tp.partition
