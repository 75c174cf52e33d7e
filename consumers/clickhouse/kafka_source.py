"""Every topic of a namespace, read as one member of the sink's consumer group: committed records, positions, commits.

After each assignment a partition is read from its committed offset, explicitly: whatever was fetched before does not
count. `generation` grows with each change of the assignment; who buffers records throws them away when it does.
Records that retention took before they were read are gone; it is said which, and no range covers them.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError, OffsetOutOfRangeError

from rollbus.consumers.clickhouse.chunk_joiner import KafkaRecord
from rollbus.consumers.clickhouse.settings import SinkSettings
from rollbus.schemas.errors import UnavailableError
from rollbus.schemas.making import maker
from rollbus.schemas.starting_kafka import start_whole
from rollbus.schemas.stopping_kafka import stop_quietly
from rollbus.schemas.topics import MAX_MESSAGE_BYTES, TOPICS

logger = logging.getLogger(__name__)

METADATA_MAX_AGE_MS = 5_000
"""A topic that is created later is noticed after so long."""
MAX_RECORDS = 5_000
"""Of one poll: the buffer's limits are checked in between."""

_record = maker(KafkaRecord)

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
    """Partitions that no longer have what comes next, and where their reading goes on."""


class KafkaSource(ConsumerRebalanceListener):  # type: ignore[misc]
    """The consumer behind the sink."""

    def __init__(self, settings: SinkSettings) -> None:
        """Nothing connects before `start`."""
        self.generation = 0
        self._settings = settings
        self._names = {topic.full_name(settings.namespace): topic.name for topic in TOPICS}
        self._known: set[TopicPartition] = set()
        self._consumer: Any = None

    async def start(self) -> None:
        """Connect and join the group; raises UnavailableError."""
        self._consumer = AIOKafkaConsumer(
            **self._settings.kafka.client_options(),
            group_id=self._settings.group_id,
            client_id=f"{self._settings.namespace}sink",
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="none",  # no silent jump where retention is faster; reading begins by a seek
            metadata_max_age_ms=METADATA_MAX_AGE_MS,
            max_partition_fetch_bytes=2 * MAX_MESSAGE_BYTES,
            max_poll_interval_ms=600_000,
        )
        self._consumer.subscribe(list(self._names), listener=self)
        try:
            await start_whole(self._consumer.start)
        except KafkaError as error:
            await self.stop()
            raise self._settings.kafka.unavailable(error) from error
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Leave the group."""
        if self._consumer is not None:
            await stop_quietly(self._consumer.stop)

    async def poll(self, timeout_s: float) -> Fetched:
        """Return what came within the time; raises UnavailableError."""
        generation = self.generation
        try:
            starts, ends = await self._begin_new()
            fetched, moved = await self._fetch(timeout_s)
            positions = {self._partition(tp): await self._consumer.position(tp) for tp in self._known}
        except (KafkaError, IllegalStateError) as error:
            if generation != self.generation:
                return Fetched(self.generation, {}, {}, (), {})
            self.read_again()
            raise self._settings.kafka.unavailable(error) from error
        if generation != self.generation:
            return Fetched(self.generation, {}, {}, (), {})
        records = tuple(
            _record(self._names[tp.topic], tp.partition, found.offset, found.timestamp, found.key, found.value)
            for tp, batch in fetched.items()
            for found in batch
        )
        return Fetched(generation, starts, ends, records, positions, moved)

    async def commit(self, offsets: Mapping[Partition, int]) -> bool:
        """Commit; False where another member owns a partition by now, and everything is to be read anew."""
        by_partition = {
            TopicPartition(self._settings.namespace + topic, number): offset
            for (topic, number), offset in offsets.items()
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
        """Return the end of a partition as last heard; 0 where it was not."""
        tp = TopicPartition(self._settings.namespace + partition[0], partition[1])
        return (self._consumer.highwater(tp) or 0) if tp in self._known else 0

    def read_again(self) -> None:
        """Begin every partition anew at its committed offset."""
        self.generation += 1
        self._known.clear()

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Forget the assignment; what was buffered of it will be read again by its next owner."""
        self.read_again()

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Take the new assignment; reading begins with the next poll."""
        self.read_again()

    async def _fetch(self, timeout_s: float) -> tuple[Mapping[TopicPartition, Any], Mapping[Partition, int]]:
        """Return records, or the partitions that moved."""
        try:
            return await self._consumer.getmany(timeout_ms=int(timeout_s * 1000), max_records=MAX_RECORDS), {}
        except OffsetOutOfRangeError as error:
            return {}, await self._move(error.args[0])

    async def _move(self, asked: Mapping[TopicPartition, int]) -> dict[Partition, int]:
        """Go on at the beginning of partitions that do not have these offsets."""
        begins = await self._consumer.beginning_offsets(list(asked))
        for tp, begin in begins.items():
            self._say_lost(tp, asked[tp], begin)
            self._consumer.seek(tp, begin)
        return {self._partition(tp): begin for tp, begin in begins.items()}

    def _say_lost(self, tp: TopicPartition, wanted: int, begin: int) -> None:
        topic, number = self._partition(tp)
        if begin > wanted:
            logger.error(
                "records %d to %d of %s:%d were deleted by Kafka's retention before they were written; "
                "`rollbus sql run is_anything_lost` counts the hole",
                *(wanted, begin - 1, topic, number),
            )
        else:
            logger.error("%s:%d has no offset %d, and is read again from %d", topic, number, wanted, begin)

    async def _begin_new(self) -> tuple[dict[Partition, int], dict[Partition, int]]:
        new = sorted(self._consumer.assignment() - self._known)
        if not new:
            return {}, {}
        generation = self.generation
        beginnings = await self._consumer.beginning_offsets(new)
        ends = await self._consumer.end_offsets(new)
        committed = {tp: await self._consumer.committed(tp) for tp in new}
        if generation != self.generation:
            return {}, {}
        starts = {tp: max(committed[tp] or 0, beginnings[tp]) for tp in new}
        for tp, start in starts.items():
            if committed[tp] is not None and committed[tp] < start:
                self._say_lost(tp, committed[tp], start)
            self._consumer.seek(tp, start)
            self._known.add(tp)
        return (
            {self._partition(tp): start for tp, start in starts.items()},
            {self._partition(tp): ends[tp] for tp in new},
        )

    def _partition(self, tp: TopicPartition) -> Partition:
        return self._names[tp.topic], tp.partition


async def connect(settings: SinkSettings, *, pauses: Iterable[float], stop: asyncio.Event) -> KafkaSource | None:
    """Return a started source; tries again after each pause until told to stop."""
    for pause in pauses:
        source = KafkaSource(settings)
        try:
            await source.start()
            return source
        except UnavailableError as error:
            logger.warning("trying again in %.1f s error=%s", pause, error)
        try:
            await asyncio.wait_for(stop.wait(), pause)
            return None
        except TimeoutError:
            continue
    return None
