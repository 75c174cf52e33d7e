"""Read a topic as far as it is committed now: the ledger in full, the scores for what was excluded."""

from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass

from aiokafka import AIOKafkaConsumer, TopicPartition

from rollbus.schemas.codec import decode
from rollbus.schemas.errors import RecordError
from rollbus.schemas.kafka_connection import KafkaConnection
from rollbus.schemas.trajectories import Score
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
    """Yield from the consumer's positions to what is committed at the call."""
    ends = await consumer.end_offsets(list(joiners))
    behind = list(joiners)
    while behind := [each for each in behind if await consumer.position(each) < ends[each]]:
        for partition, records in (await consumer.getmany(*behind, timeout_ms=POLL_MS)).items():
            for record in records:
                whole = joiners[partition].add(record.value) if record.value is not None else None
                if whole is not None:
                    yield Frame(record.key, whole)


class ExclusionReader:
    """Follows `scores`: the episodes that were excluded from training after they had been scored."""

    def __init__(self, connection: KafkaConnection, topic: str, partitions: int) -> None:
        self._connection = connection
        self._joiners = {TopicPartition(topic, number): Joiner() for number in range(partitions)}
        self._topic = topic
        self._consumer: AIOKafkaConsumer | None = None
        self._excluded: set[str] = set()

    async def excluded_episodes(self) -> Collection[str]:
        """Read on to the end and return all that are excluded."""
        with kafka_errors(f"reading {self._topic}"):
            consumer = self._consumer or await self._open()
            consumer.resume(*self._joiners)
            async for frame in to_the_end(consumer, self._joiners):
                self._take(frame)
            consumer.pause(*self._joiners)
        return self._excluded

    async def close(self) -> None:
        """Let the connection go; what was read is kept."""
        if self._consumer is not None:
            await self._consumer.stop()
            self._consumer = None

    async def _open(self) -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(**reader_options(self._connection))
        await consumer.start()
        self._consumer = consumer
        consumer.assign(list(self._joiners))
        await consumer.seek_to_beginning()
        return consumer

    def _take(self, frame: Frame) -> None:
        try:
            record = decode(frame.value)
        except RecordError:
            return  # grouping, which decides on scores, dead-letters it
        if isinstance(record, Score) and record.excluded:
            self._excluded.add(record.episode_id)
