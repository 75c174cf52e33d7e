"""Rows (topic, partition, key, value) → records that the broker has confirmed: one by one, in batches, in transactions.

`create_batch` and `send_batch` instead of one `send` per record: a transaction of thousands of records costs a
few calls. The producer's own size check does not run on this path, so what is too large is refused before.
"""

import asyncio
import functools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from aiokafka import AIOKafkaProducer
from aiokafka.errors import IllegalOperation
from aiokafka.partitioner import murmur2

from rollbus.runtime.kafka.clients import new_producer, running
from rollbus.runtime.kafka.connection import KafkaConnection

FLIGHT_BYTES = 32 * 1024 * 1024
"""After so many bytes the broker's answers are awaited: a request with a large record for each of many partitions would
be more than it takes (`socket.request.max.bytes`, 100 MiB)."""


class Row(NamedTuple):
    """One record to write, its partition already decided."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, Any]] = ()
    timestamp_ms: int | None = None
    """None is the time of writing: it serves retention only, and nothing reads it."""


async def send_each(connection: KafkaConnection, rows: Iterable[Row], what: str = "") -> None:
    """Write rows in their order, each confirmed before the next; raises UnavailableError."""
    async with running(connection, new_producer(connection), what=what) as producer:
        for topic, partition, key, value, headers, timestamp in rows:
            await producer.send_and_wait(
                topic, value, key=key, partition=partition, headers=list(headers), timestamp_ms=timestamp
            )


async def write_transaction(producer: AIOKafkaProducer, rows: Iterable[Row]) -> None:
    """Write rows in one transaction."""
    await producer.begin_transaction()
    await write(producer, rows)
    await producer.commit_transaction()


@functools.lru_cache(maxsize=65_536)
def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition that every Kafka client picks for a key."""
    return int((murmur2(key) & 0x7FFFFFFF) % partitions)


async def partition_count(producer: AIOKafkaProducer, topic: str) -> int:
    """Return how many partitions a topic has, from the producer's metadata."""
    return len(await producer.partitions_for(topic))


async def write(producer: AIOKafkaProducer, rows: Iterable[Row]) -> None:
    """Send all rows in order and return once the broker has confirmed every one; raises the first failure."""
    futures: list[asyncio.Future[Any]] = []
    size = 0
    for layer in _layers(_batches(producer, rows)):
        for topic, partition, builder in layer:
            if (size := size + builder.size()) > FLIGHT_BYTES:
                await _confirmed(futures)
                futures, size = [], builder.size()
            try:
                future = await producer.send_batch(builder, topic, partition=partition)
            except IllegalOperation:  # something ended the transaction; the batches sent before carry the reason
                await _confirmed(futures)
                raise
            future.add_done_callback(_mark_retrieved)
            futures.append(future)
    await _confirmed(futures)


async def _confirmed(futures: Iterable[asyncio.Future[Any]]) -> None:
    for outcome in await asyncio.gather(*futures, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


def _batches(producer: AIOKafkaProducer, rows: Iterable[Row]) -> dict[tuple[str, int], list[Any]]:
    batches: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for topic, partition, key, value, headers, timestamp in rows:
        builders, copied = batches[topic, partition], list(headers)
        if not builders or builders[-1].append(timestamp=timestamp, key=key, value=value, headers=copied) is None:
            builders.append(producer.create_batch())
            if builders[-1].append(timestamp=timestamp, key=key, value=value, headers=copied) is None:
                raise ValueError(f"a record of {len(value or b'')} bytes for {topic} does not fit into an empty batch")
    return batches


def _layers(batches: dict[tuple[str, int], list[Any]]) -> Iterable[Sequence[tuple[str, int, Any]]]:
    """Yield the first batch of each partition, then the second, …: a partition takes one at a time."""
    for builders in batches.values():
        builders.reverse()
    while layer := [(*place, builders.pop()) for place, builders in batches.items() if builders]:
        yield layer


def _mark_retrieved(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
