"""A replay's records onto Kafka, at the offsets that were given out for them.

Nothing is transactional here, so no control record takes an offset. What a replay of the same plan wrote before it was
killed is there already: its offsets are passed over, and its records are compared with what would be written.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiokafka import TopicPartition

from rollbus.runtime.kafka.clients import new_producer, start_client, stop_clients
from rollbus.runtime.kafka.reading import read_ends
from rollbus.runtime.kafka.writing import Row, write
from rollbus.schemas.errors import DataLossError
from rollbus.schemas.topics import Topic
from rollbus.streams.kafka.settings import StreamSettings

HELD_BYTES = 4 * 1024 * 1024
"""So much waits while as much again is on its way."""


class OtherRecordsError(Exception):
    """What an earlier attempt wrote is not what this one makes: throw it away, and begin again."""


@dataclass(frozen=True, slots=True)
class WrittenPartition:
    """What a partition holds already."""

    end: int
    digest: bytes
    """Of all values, in order."""


@dataclass(slots=True)
class _Passed:
    """What was passed over of it so far."""

    written: WrittenPartition
    hash: Any


class KafkaOutput:
    """Writes into the namespace of its settings."""

    def __init__(self, settings: StreamSettings) -> None:
        self._settings = settings
        self._producer = new_producer(settings.kafka)
        self.counts: Counter[tuple[str, int]] = Counter()
        self.resumed = 0
        """Records that were there already."""
        self._there: dict[tuple[str, int], _Passed] = {}
        self._rows: list[Row] = []
        self._bytes = 0
        self._writing: asyncio.Task[None] | None = None
        self._names: dict[str, str] = {}

    async def start(self, there: Mapping[tuple[str, int], WrittenPartition]) -> None:
        """Connect; `there` is what the partitions hold, by topic name without namespace."""
        self._there = {place: _Passed(written_partition, values_hash()) for place, written_partition in there.items()}
        await start_client(self._producer)

    def append(self, topic: Topic, partition: int, key: bytes | None, frame: bytes) -> int:
        """Take a frame and return the offset that it has."""
        place = (topic.name, partition)
        offset = self.counts[place]
        self.counts[place] = offset + 1
        if place in self._there:
            self._pass_over(place, offset, frame)
        else:
            name = self._names.get(topic.name) or self._names.setdefault(
                topic.name, topic.full_name(self._settings.namespace)
            )
            self._rows.append(Row(name, partition, key, frame))
            self._bytes += len(frame)
        return offset

    def _pass_over(self, place: tuple[str, int], offset: int, frame: bytes) -> None:
        """Count a frame that is there already; raises OtherRecordsError where another does."""
        self.resumed += 1
        passed = self._there[place]
        add_value(passed.hash, frame)
        if offset + 1 == passed.written.end:
            if passed.hash.digest() != passed.written.digest:
                raise OtherRecordsError(f"{self._settings.namespace}{place[0]}[{place[1]}] holds other records")
            del self._there[place]

    async def settle(self) -> None:
        """Send what waits, if it is much; the next part may be made meanwhile, and what is on its way goes on."""
        if self._bytes >= HELD_BYTES:
            await self._send()
        elif self._writing is not None and not self._writing.done():
            await asyncio.sleep(0)

    async def flush(self) -> None:
        """Send everything and wait until it is there."""
        await self._send()
        await self._send()

    async def finish(self, *, stopped: bool = False) -> None:
        """Send everything, and compare the ends of the partitions with what was counted.

        An earlier attempt may have written more than one that was stopped; in any other case that raises
        OtherRecordsError. Raises DataLossError if another process has written.
        """
        await self.flush()
        if self._there and not stopped:
            topic, partition = next(iter(self._there))
            raise OtherRecordsError(f"{self._settings.namespace}{topic}[{partition}] holds more records")
        new_counts = {place: count for place, count in self.counts.items() if place not in self._there}
        ends = await end_offsets(self._settings, list(new_counts))
        wrong = {place: (count, ends[place]) for place, count in new_counts.items() if ends[place] != count}
        if wrong:
            (topic, partition), (count, end) = next(iter(wrong.items()))
            raise DataLossError(
                f"{self._settings.namespace}{topic}[{partition}] ends at {end} and not at {count}: somebody else has "
                "written there; delete the replay and start it again"
            )

    async def close(self) -> None:
        """Let the connection go."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)
        await stop_clients(self._producer)

    async def _send(self) -> None:
        if self._writing is not None:
            await self._writing
        rows, self._rows, self._bytes = self._rows, [], 0
        self._writing = asyncio.create_task(write(self._producer, rows)) if rows else None
        await asyncio.sleep(0)


def values_hash() -> Any:
    """Return the hash of no values."""
    return hashlib.blake2b(digest_size=16)


def add_value(values: Any, frame: bytes) -> None:
    """Take one more value into the hash."""
    values.update(len(frame).to_bytes(4, "big"))
    values.update(frame)


async def end_offsets(settings: StreamSettings, places: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Return the ends of partitions of the namespace; raises UnavailableError."""
    if not places:
        return {}
    topic_partitions = {place: TopicPartition(settings.namespace + place[0], place[1]) for place in places}
    ends = await read_ends(settings.kafka, topic_partitions.values())
    return {place: ends[tp] for place, tp in topic_partitions.items()}
