"""Locations → the trajectories that are there, later revisions of their rewards, or scores, by assign and seek.

Stages that ask somebody about whole trajectories, replays and the trainer read by it. What retention removed, what an
aborted transaction left and what is not a trajectory is missing from the answer; a broker that does not answer is an
error, since "lost" is final for a member and "away" is not.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Collection, Mapping
from typing import TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition

from rollbus.runtime.kafka.clients import kafka_errors, new_consumer, start_client, stop_clients
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.kafka.reading import POLL_MS, SHORT_WAIT_MS
from rollbus.schemas.codec import decode_if
from rollbus.schemas.namespaces import RESTORED
from rollbus.schemas.records.trajectories import Location, RewardRevised, Score, Trajectory
from rollbus.schemas.topics import topic_of

GAP_RECORDS = 200
"""Seek over a gap of more records; a fetch usually brings about so many anyway."""
FETCH_TIMEOUT_S = 60.0

RecordT = TypeVar("RecordT", Trajectory, RewardRevised, Score)


class KafkaPayload:
    """One consumer without a group, moved to where the payload is."""

    def __init__(self, connection: KafkaConnection, namespace: str) -> None:
        self._connection = connection
        self._namespace = namespace
        self._consumer: AIOKafkaConsumer | None = None
        self._lock = asyncio.Lock()
        """Partitions of a stage ask at the same time, and a consumer has one position."""

    async def fetch(self, locations: Collection[Location]) -> Mapping[Location, Trajectory]:
        """Return the trajectories found; UnavailableError where the broker does not answer in time."""
        return await self._fetch(locations, Trajectory)

    async def fetch_revisions(self, locations: Collection[Location]) -> Mapping[Location, RewardRevised]:
        """Return the revisions of rewards found; UnavailableError as above."""
        return await self._fetch(locations, RewardRevised)

    async def fetch_scores(self, locations: Collection[Location]) -> Mapping[Location, Score]:
        """Return the scores found; UnavailableError as above."""
        return await self._fetch(locations, Score)

    async def _fetch(self, locations: Collection[Location], kind: type[RecordT]) -> dict[Location, RecordT]:
        offsets_by_partition: dict[TopicPartition, set[int]] = defaultdict(set)
        for location in locations:
            offsets_by_partition[self._partition(location)].add(location.offset)
        with kafka_errors(self._connection, f"fetching {len(locations)} records of trajectories"):
            try:
                async with self._lock, asyncio.timeout(FETCH_TIMEOUT_S):
                    values = await self._read(offsets_by_partition) if offsets_by_partition else {}
            except Exception:
                await self.close()
                raise
        records = {}
        for location in locations:
            value = values.get((self._partition(location), location.offset))
            if (record := decode_if(value, kind)) is not None:
                records[location] = record
        return records

    async def close(self) -> None:
        """Let the connection go."""
        consumer, self._consumer = self._consumer, None
        await stop_clients(consumer)

    def _partition(self, location: Location) -> TopicPartition:
        try:
            topic = topic_of(location.topic).full_name(self._namespace)
        except KeyError:
            topic = location.topic
        if (restored := RESTORED.match(self._namespace)) and not RESTORED.match(topic):
            topic = restored[0] + topic  # the name is that of the log that was archived
        return TopicPartition(topic, location.partition)

    async def _read(
        self, offsets_by_partition: Mapping[TopicPartition, set[int]]
    ) -> dict[tuple[TopicPartition, int], bytes]:
        consumer = self._consumer or await self._open()
        partitions = list(offsets_by_partition)
        consumer.assign(partitions)
        starts, ends = await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
        still_there = {
            partition: deque(sorted(offset for offset in offsets if starts[partition] <= offset < ends[partition]))
            for partition, offsets in offsets_by_partition.items()
        }
        values = await _read_records(consumer, still_there)
        consumer.pause(*partitions)  # what comes after is of no interest
        return values

    async def _open(self) -> AIOKafkaConsumer:
        self._consumer = await start_client(new_consumer(self._connection, fetch_max_wait_ms=SHORT_WAIT_MS))
        return self._consumer


async def _read_records(
    consumer: AIOKafkaConsumer, offsets_by_partition: dict[TopicPartition, deque[int]]
) -> dict[tuple[TopicPartition, int], bytes]:
    """Read each partition once from its first to its last wanted offset, seeking over large gaps."""
    values: dict[tuple[TopicPartition, int], bytes] = {}
    for partition, offsets in offsets_by_partition.items():
        if offsets:
            consumer.seek(partition, offsets[0])
    while pending := [partition for partition, offsets in offsets_by_partition.items() if offsets]:
        for partition, records in (await consumer.getmany(*pending, timeout_ms=POLL_MS)).items():
            awaited_offsets = set(offsets_by_partition[partition])
            for record in records:
                if record.offset in awaited_offsets and record.value is not None:
                    values[partition, record.offset] = record.value
        for partition in pending:
            offsets, position = offsets_by_partition[partition], await consumer.position(partition)
            while offsets and offsets[0] < position:
                offsets.popleft()
            if offsets and offsets[0] - position > GAP_RECORDS:
                consumer.seek(partition, offsets[0])
    return values
