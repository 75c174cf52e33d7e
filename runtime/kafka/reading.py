"""Topics → committed records: a bounded range, a topic to its present end, or what has come since the last look.

A reader has no consumer group, so no position of anyone moves. Records of an aborted transaction are not there. A range
that retention has cut while it was read raises DataLossError; nothing is stepped over.
"""

import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Unpack

from aiokafka import AIOKafkaConsumer, TopicPartition

from rollbus.runtime.kafka.clients import ConsumerOptions, consumer_options, running
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.errors import UnavailableError

POLL_MS = 200
FETCH_WAIT_MS, SHORT_WAIT_MS = 50, 10
"""How long the broker may hold back a fetch at a partition's end: the next seek or question on the connection waits.
Short for readers that a training step waits for."""
READ_AT_ONCE = 1_000
"""Records; the rest of what a fetch brought stays compressed, which in memory is tens of megabytes less."""

Bounds = tuple[int, int]
"""The first offset that a partition still has, and the one after the last that a reader of committed records sees."""


class AssignedOnce(AIOKafkaConsumer):  # type: ignore[misc]
    """A consumer whose partitions are chosen once.

    After another `assign`, aiokafka's fetcher cancels its fetches. If the consumer is stopped at the same moment, the
    fetcher misses that: it fetches for ever, and `stop` never returns.
    """

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Choose the partitions; raises RuntimeError if they were chosen already."""
        if self.assignment():
            raise RuntimeError(f"assigned to {len(self.assignment())} partitions already; take another reader")
        super().assign(partitions)


def new_reader(connection: KafkaConnection, **options: Unpack[ConsumerOptions]) -> AIOKafkaConsumer:
    """Return a consumer without a group, to be started by the caller."""
    return AssignedOnce(**{"fetch_max_wait_ms": FETCH_WAIT_MS, **consumer_options(connection, **options)})


@asynccontextmanager
async def open_reader(
    connection: KafkaConnection, what: str = "", **options: Unpack[ConsumerOptions]
) -> AsyncIterator[AIOKafkaConsumer]:
    """Connect a consumer without a group; raises DataLossError, UnavailableError."""
    async with running(connection, new_reader(connection, **options), what=what) as consumer:
        yield consumer


def assign_paused(consumer: AIOKafkaConsumer, places: Collection[TopicPartition]) -> None:
    """Choose a reader's partitions and fetch nothing yet.

    A consumer that is asked for bounds before it has partitions learns of one topic at a time, 0.1 s for each. The
    position is a stand-in, so that the client looks for none itself; seek, then resume.
    """
    if places:
        consumer.assign(list(places))
        consumer.pause(*places)
    for place in places:
        consumer.seek(place, 0)


async def read_bounds(consumer: AIOKafkaConsumer, places: Collection[TopicPartition]) -> dict[TopicPartition, Bounds]:
    """Return where each partition begins and ends now."""
    partitions = list(places)
    begins, ends = await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
    return {place: (begins[place], ends[place]) for place in partitions}


async def read_ends(
    connection: KafkaConnection, places: Collection[TopicPartition], *, what: str = ""
) -> dict[TopicPartition, int]:
    """Return where partitions end now, records of open transactions included; raises UnavailableError.

    A commit is answered before its records can be read: until then, a reader of committed records ends before them.
    """
    async with open_reader(connection, what, isolation_level="read_uncommitted") as reader:
        assign_paused(reader, places)
        ends: dict[TopicPartition, int] = await reader.end_offsets(list(places))
        return ends


async def read_from(
    connection: KafkaConnection,
    starts: Mapping[TopicPartition, int],
    *,
    newest: int | None = None,
) -> AsyncGenerator[Any, None]:
    """Yield records from these offsets, or from what is left, to the present end: one partition after the other.

    With `newest` not more than so many offsets of each.
    """
    async with open_reader(connection, f"reading {_names(starts)}") as consumer:
        assign_paused(consumer, starts)
        bounds = await read_bounds(consumer, starts)
        for place, (begin, end) in bounds.items():
            begin = max(begin, starts[place], begin if newest is None else end - newest)
            consumer.seek(place, min(begin, end))
        consumer.resume(*starts)
        for place, (_, end) in bounds.items():
            async with aclosing(read_on(consumer, {place: end})) as records:
                async for record in records:
                    if record.offset < end:
                        yield record


async def read_on(
    consumer: AIOKafkaConsumer, ends: Mapping[TopicPartition, int], *, patience_s: float = math.inf
) -> AsyncGenerator[Any, None]:
    """Yield from the consumer's positions to these ends and a little beyond; fetch nothing where it has reached them.

    Afterwards the partitions are paused, so that the broker is not asked for what comes next. Raises UnavailableError
    if nothing comes for `patience_s`.
    """
    behind = await _behind(consumer, ends)
    if not behind:
        return
    consumer.resume(*behind)
    came_s = time.monotonic()
    while behind := await _behind(consumer, {place: ends[place] for place in behind}):
        fetched = await consumer.getmany(*behind, timeout_ms=POLL_MS, max_records=READ_AT_ONCE)
        for records in fetched.values():
            for record in records:
                yield record
        if fetched:
            came_s = time.monotonic()
        elif time.monotonic() - came_s > patience_s:
            raise UnavailableError(f"{_names(behind)}: nothing came for {patience_s:.0f} s; does it have a leader?")
    consumer.pause(*ends)


async def _behind(consumer: AIOKafkaConsumer, ends: Mapping[TopicPartition, int]) -> list[TopicPartition]:
    return [place for place, end in ends.items() if await consumer.position(place) < end]


def _names(places: Collection[TopicPartition]) -> str:
    return ", ".join(sorted({place.topic for place in places}))
