"""Locations → the trajectories that stand there, read from `trajectories` by assign and seek.

Stages that ask somebody about whole trajectories, replays and the trainer read by it. What retention removed, what an
aborted transaction left and what is no trajectory is missing from the answer; a broker that does not answer is an
error, since "lost" is final for a member and "away" is not.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Collection, Mapping

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import IllegalOperation, KafkaError

from rollbus.schemas.chunks import is_chunk, parse
from rollbus.schemas.codec import decode
from rollbus.schemas.errors import RecordError, UnavailableError
from rollbus.schemas.joining import Joiner
from rollbus.schemas.kafka_connection import KafkaConnection, how_it_failed
from rollbus.schemas.starting_kafka import start_whole
from rollbus.schemas.stopping_kafka import stop_quietly
from rollbus.schemas.topics import MAX_MESSAGE_BYTES, topic_of
from rollbus.schemas.trajectories import Location, Trajectory

POLL_MS = 200
FETCH_WAIT_MS = 10
"""How long the broker may hold back a fetch at a partition's end: the next seek on the connection waits."""
GAP_RECORDS = 200
"""Seek over a gap of more records; a fetch usually brings about so many anyway."""
CHUNK_SPREAD = 512
"""How far apart, in offsets, the chunks of one record are looked for: other records lie between."""
FETCH_TIMEOUT_S = 60.0


class KafkaPayload:
    """One consumer without a group, moved to where the payload is."""

    def __init__(self, connection: KafkaConnection, namespace: str) -> None:
        self._connection = connection
        self._namespace = namespace
        self._consumer: AIOKafkaConsumer | None = None
        self._lock = asyncio.Lock()
        """Partitions of a stage ask at the same time, and a consumer stands at one place."""

    async def fetch(self, locations: Collection[Location]) -> Mapping[Location, Trajectory]:
        """Return the trajectories found; UnavailableError where the broker does not answer in time."""
        wanted: dict[TopicPartition, set[int]] = defaultdict(set)
        for location in locations:
            wanted[self._partition(location)].add(location.offset)
        try:
            async with self._lock, asyncio.timeout(FETCH_TIMEOUT_S):
                values = await self._read(wanted) if wanted else {}
        except (KafkaError, IllegalOperation, OSError, TimeoutError) as error:
            await self.close()
            raise UnavailableError(f"fetching {len(locations)} trajectories: Kafka {how_it_failed(error)}") from error
        found = {}
        for location in locations:
            value = values.get((self._partition(location), location.offset))
            if value is not None and (trajectory := _decoded(value)) is not None:
                found[location] = trajectory
        return found

    async def close(self) -> None:
        """Let the connection go."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await stop_quietly(consumer.stop)

    def _partition(self, location: Location) -> TopicPartition:
        try:
            topic = topic_of(location.topic).full_name(self._namespace)
        except KeyError:
            topic = location.topic
        return TopicPartition(topic, location.partition)

    async def _read(self, wanted: Mapping[TopicPartition, set[int]]) -> dict[tuple[TopicPartition, int], bytes]:
        consumer = self._consumer or await self._open()
        partitions = list(wanted)
        consumer.assign(partitions)
        starts, ends = await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
        still_there = {
            partition: deque(sorted(each for each in offsets if starts[partition] <= each < ends[partition]))
            for partition, offsets in wanted.items()
        }
        values = await _read_records(consumer, still_there)
        for (partition, offset), value in list(values.items()):
            if is_chunk(value):
                whole = await _read_chunked(consumer, partition, offset, value, starts[partition], ends[partition])
                values.pop((partition, offset))
                if whole is not None:
                    values[partition, offset] = whole
        consumer.pause(*partitions)  # what comes after is of no interest
        return values

    async def _open(self) -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(
            **self._connection.client_options(),
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="none",  # no jump where retention is faster
            max_partition_fetch_bytes=4 * MAX_MESSAGE_BYTES,
            fetch_max_wait_ms=FETCH_WAIT_MS,
        )
        try:
            await start_whole(consumer.start)
        except BaseException:
            await stop_quietly(consumer.stop)
            raise
        self._consumer = consumer
        return consumer


async def _read_records(
    consumer: AIOKafkaConsumer, wanted: dict[TopicPartition, deque[int]]
) -> dict[tuple[TopicPartition, int], bytes]:
    """Read each partition once from its first to its last wanted offset, seeking over large gaps."""
    values: dict[tuple[TopicPartition, int], bytes] = {}
    for partition, offsets in wanted.items():
        if offsets:
            consumer.seek(partition, offsets[0])
    while pending := [partition for partition, offsets in wanted.items() if offsets]:
        for partition, records in (await consumer.getmany(*pending, timeout_ms=POLL_MS)).items():
            asked = set(wanted[partition])
            for record in records:
                if record.offset in asked and record.value is not None:
                    values[partition, record.offset] = record.value
        for partition in pending:
            offsets, position = wanted[partition], await consumer.position(partition)
            while offsets and offsets[0] < position:
                offsets.popleft()
            if offsets and offsets[0] - position > GAP_RECORDS:
                consumer.seek(partition, offsets[0])
    return values


async def _read_chunked(
    consumer: AIOKafkaConsumer, partition: TopicPartition, offset: int, frame: bytes, start: int, end: int
) -> bytes | None:
    """Join the record of which this frame is a part; None where its other parts are not near."""
    joiner, last = Joiner[None](), min(end, offset + CHUNK_SPREAD)
    try:
        digest = parse(frame).digest
    except RecordError:
        return None
    consumer.seek(partition, max(start, offset - CHUNK_SPREAD))
    while await consumer.position(partition) < last:
        for record in (await consumer.getmany(partition, timeout_ms=POLL_MS)).get(partition, ()):
            try:
                if (
                    record.value is None
                    or not is_chunk(record.value)
                    or (chunk := parse(record.value)).digest != digest
                ):
                    continue
                whole = joiner.add(chunk, None)
            except RecordError:
                continue
            if whole is not None:
                return whole.data
    return None


def _decoded(value: bytes) -> Trajectory | None:
    try:
        record = decode(value)
    except RecordError:
        return None
    return record if isinstance(record, Trajectory) else None
