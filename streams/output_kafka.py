"""Write a transaction's records as whole batches: (topic, partition, key, value) → confirmed by the broker.

`create_batch` and `send_batch` instead of one `send` per record: a transaction of thousands of records costs a
few calls. The producer's own size check does not run on this path, so what is too large is refused before.
"""

import asyncio
import functools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from aiokafka.partitioner import murmur2

from rollbus.schemas.topics import MAX_MESSAGE_BYTES
from rollbus.streams.settings import StreamSettings

BATCH_BYTES = 1_048_576
"""Uncompressed; below the topics' limit even if nothing compresses. A single larger record is a batch of its own."""
REQUEST_TIMEOUT_MS = 20_000
STOP_S = 2.0


class Row(NamedTuple):
    """One record to write, its partition already decided."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None


def new_producer(settings: StreamSettings, transactional_id: str) -> AIOKafkaProducer:
    """Return a producer whose start fences every older one of the same id and ends what that one left open."""
    return AIOKafkaProducer(
        **settings.kafka.client_options(),
        transactional_id=transactional_id,
        transaction_timeout_ms=int(settings.transaction_timeout_s * 1000),
        compression_type="zstd",
        max_batch_size=BATCH_BYTES,
        max_request_size=MAX_MESSAGE_BYTES,
        request_timeout_ms=REQUEST_TIMEOUT_MS,
    )


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
    for layer in _layers(_batches(producer, rows)):
        for topic, partition, builder in layer:
            future = await producer.send_batch(builder, topic, partition=partition)
            future.add_done_callback(_mark_retrieved)
            futures.append(future)
    for outcome in await asyncio.gather(*futures, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


def _batches(producer: AIOKafkaProducer, rows: Iterable[Row]) -> dict[tuple[str, int], list[Any]]:
    batches: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for topic, partition, key, value in rows:
        builders = batches[topic, partition]
        # The timestamp serves retention only, and nothing reads it: None is the time of writing.
        if not builders or builders[-1].append(timestamp=None, key=key, value=value) is None:
            builders.append(producer.create_batch())
            if builders[-1].append(timestamp=None, key=key, value=value) is None:
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


async def stop_producer(producer: AIOKafkaProducer) -> None:
    """Stop a producer; one that cannot flush, or that nobody waits for any longer, is cut off.

    What it left open is settled by its successor.
    """
    stopped = False
    try:
        with suppress(TimeoutError, KafkaError, OSError):
            await asyncio.wait_for(producer.stop(), STOP_S)
            stopped = True
    finally:
        if not stopped:
            with suppress(Exception):
                await producer.client.close()
