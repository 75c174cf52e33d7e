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
"""After so many bytes the broker's answers are awaited: one request with a large record for each of many partitions
would exceed what the broker takes (`socket.request.max.bytes`, 100 MiB)."""


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
    """Write rows in their order, each confirmed before the next; raises UnavailableError, which names `what`."""
    async with running(connection, new_producer(connection), what=what) as producer:
        for topic, partition, key, value, headers, timestamp_ms in rows:
            await producer.send_and_wait(
                topic, value, key=key, partition=partition, headers=list(headers), timestamp_ms=timestamp_ms
            )


async def write_transaction(producer: AIOKafkaProducer, rows: Iterable[Row]) -> None:
    """Write rows in one transaction; what fails leaves it open, for the caller's producer to be closed."""
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
    flight_bytes = 0
    for layer in _take_layers(_fill_batches(producer, rows)):
        for topic, partition, builder in layer:
            if (flight_bytes := flight_bytes + builder.size()) > FLIGHT_BYTES:
                await _wait_for_confirmation(futures)
                futures, flight_bytes = [], builder.size()
            try:
                future = await producer.send_batch(builder, topic, partition=partition)
            except IllegalOperation:  # something ended the transaction; the batches sent before carry the reason
                await _wait_for_confirmation(futures)
                raise
            future.add_done_callback(_mark_retrieved)
            futures.append(future)
    await _wait_for_confirmation(futures)


async def _wait_for_confirmation(futures: Iterable[asyncio.Future[Any]]) -> None:
    """Return once all have ended; raises the first failure."""
    for outcome in await asyncio.gather(*futures, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


def _fill_batches(producer: AIOKafkaProducer, rows: Iterable[Row]) -> dict[tuple[str, int], list[Any]]:
    """Return the batches of each partition in their order; raises ValueError for a record that no batch can hold."""
    batches: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for topic, partition, key, value, headers, timestamp_ms in rows:
        builders, header_list = batches[topic, partition], list(headers)
        if (
            not builders
            or builders[-1].append(timestamp=timestamp_ms, key=key, value=value, headers=header_list) is None
        ):
            builders.append(producer.create_batch())
            if builders[-1].append(timestamp=timestamp_ms, key=key, value=value, headers=header_list) is None:
                raise ValueError(f"a record of {len(value or b'')} bytes for {topic} does not fit into an empty batch")
    return batches


def _take_layers(batches: dict[tuple[str, int], list[Any]]) -> Iterable[Sequence[tuple[str, int, Any]]]:
    """Yield the first batch of each partition, then the second, …: a partition takes one at a time.

    Each batch leaves `batches`, so that its memory is free once it is sent.
    """
    for builders in batches.values():
        builders.reverse()
    while layer := [(*place, builders.pop()) for place, builders in batches.items() if builders]:
        yield layer


def _mark_retrieved(future: asyncio.Future[Any]) -> None:
    """Look at the error, if there is one: asyncio would log it if another batch's failure is raised before."""
    if not future.cancelled():
        future.exception()
