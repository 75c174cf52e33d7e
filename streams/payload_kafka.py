"""The payload of trajectories in Kafka: assign, seek, read committed, join chunks."""

import asyncio
from collections.abc import Collection, Mapping

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from rollbus.schemas.chunks import is_chunk, parse
from rollbus.schemas.codec import decode
from rollbus.schemas.errors import RecordError, UnavailableError
from rollbus.schemas.joining import Joiner
from rollbus.schemas.trajectories import Location, Trajectory
from rollbus.streams.settings import StreamSettings

POLL_MS = 200
CHUNK_SPREAD = 512
"""How far, in offsets, the chunks of one record are looked for behind its first: other records lie between."""
FETCH_S = 60.0


class KafkaPayload:
    """One consumer without a group, opened when first needed, moved to where the payload is."""

    def __init__(self, settings: StreamSettings) -> None:
        self._settings = settings
        self._consumer: AIOKafkaConsumer | None = None
        self._lock = asyncio.Lock()
        """Partitions of a stage ask at the same time, and a consumer stands at one place."""

    async def fetch(self, locations: Collection[Location]) -> Mapping[Location, Trajectory]:
        """Return the trajectories that are still there; raises UnavailableError where the broker does not answer."""
        try:
            async with self._lock, asyncio.timeout(FETCH_S):
                consumer = self._consumer or await self._open()
                found = {}
                for location in sorted(set(locations), key=lambda each: (each.topic, each.partition, each.offset)):
                    trajectory = await _read(consumer, location)
                    if trajectory is not None:
                        found[location] = trajectory
                return found
        except (KafkaError, TimeoutError, OSError) as error:
            await self.close()
            raise UnavailableError(f"{len(locations)} trajectories cannot be fetched: {error!r}") from error

    async def close(self) -> None:
        """Let the connection go."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.stop()

    async def _open(self) -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(
            **self._settings.kafka.client_options(),
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=self._settings.max_partition_fetch_bytes,
        )
        await consumer.start()
        self._consumer = consumer
        return consumer


async def _read(consumer: AIOKafkaConsumer, location: Location) -> Trajectory | None:
    """Return the trajectory whose first frame stands at a location; None where there is none any more."""
    place = TopicPartition(location.topic, location.partition)
    consumer.assign([place])
    first, end = (await consumer.beginning_offsets([place]))[place], (await consumer.end_offsets([place]))[place]
    if not first <= location.offset < end:
        return None
    consumer.seek(place, location.offset)
    joiner, last = Joiner[None](), min(end, location.offset + CHUNK_SPREAD)
    while await consumer.position(place) < last:
        for record in (await consumer.getmany(place, timeout_ms=POLL_MS)).get(place, ()):
            if record.offset == location.offset and not is_chunk(record.value or b""):
                return _trajectory(record.value)
            if not len(joiner) and record.offset != location.offset:
                return None
            whole = _joined(joiner, record.value)
            if whole is not None:
                return _trajectory(whole)
    return None


def _joined(joiner: Joiner[None], value: bytes | None) -> bytes | None:
    """Take a frame if it belongs to the one record that is being joined."""
    try:
        if value is None or not is_chunk(value):
            return None
        chunk = parse(value)
        if len(joiner) and not joiner.has_begun(chunk):
            return None
        whole = joiner.add(chunk, None)
    except RecordError:
        return None
    return None if whole is None else whole.data


def _trajectory(value: bytes | None) -> Trajectory | None:
    try:
        record = decode(value) if value is not None else None
    except RecordError:
        return None
    return record if isinstance(record, Trajectory) else None
