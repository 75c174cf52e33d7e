"""Read the dead letters of a namespace, and write records to their origin once more.

A copy carries its origin in a header. It is looked for before anything is written, so a reinjection that was broken off
is simply run again; and it carries its attempt, which the dead letter of a second failure repeats. A copy in chunks has
its origin in the last one alone: without that it is not there, and those that are there may come once more.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from rollbus.consumers.dead_letters import Copy, copies, frames
from rollbus.schemas.attempts import origin_of
from rollbus.schemas.codec import decode
from rollbus.schemas.drops import DeadLetter
from rollbus.schemas.errors import RecordError
from rollbus.schemas.joining import Joiner
from rollbus.schemas.kafka_connection import KafkaConnection
from rollbus.schemas.starting_kafka import start_whole
from rollbus.schemas.stopping_kafka import stop_quietly
from rollbus.schemas.topics import DEAD_LETTERS, MAX_MESSAGE_BYTES

POLL_MS = 200


def read_dead_letters(kafka: KafkaConnection, namespace: str) -> list[DeadLetter]:
    """Return every dead letter that is kept, oldest first; raises UnavailableError."""
    return asyncio.run(read_dead_letters_async(kafka, namespace))


def reinject(kafka: KafkaConnection, letters: Iterable[DeadLetter], *, dry_run: bool = False) -> list[Copy]:
    """Write the letters' records to their origins; return what was written, or would be. Raises UnavailableError."""
    return asyncio.run(reinject_async(kafka, letters, dry_run=dry_run))


async def read_dead_letters_async(kafka: KafkaConnection, namespace: str) -> list[DeadLetter]:
    """Return what `read_dead_letters` does, inside a running loop."""
    place = TopicPartition(DEAD_LETTERS.full_name(namespace), 0)
    joiner = Joiner[None]()
    try:
        found = [_letter(record.value, joiner) async for record in _records(kafka, {place: 0})]
    except KafkaError as error:
        raise kafka.unavailable(error) from error
    return [letter for letter in found if letter is not None]


async def reinject_async(kafka: KafkaConnection, letters: Iterable[DeadLetter], *, dry_run: bool) -> list[Copy]:
    """Do what `reinject` does, inside a running loop."""
    wanted = list(letters)
    try:
        found = copies(wanted, await _written_before(kafka, wanted))
        if found and not dry_run:
            await _write(kafka, found)
    except KafkaError as error:
        raise kafka.unavailable(error) from error
    return found


async def _written_before(kafka: KafkaConnection, letters: Iterable[DeadLetter]) -> set[str]:
    """Return the origins whose copies stand in their partitions already."""
    starts: dict[TopicPartition, int] = {}
    for letter in letters:
        place = TopicPartition(letter.topic, letter.partition)
        starts[place] = min(starts.get(place, letter.offset), letter.offset)
    return {name async for record in _records(kafka, starts) if (name := origin_of(record.headers)) is not None}


async def _write(kafka: KafkaConnection, found: Iterable[Copy]) -> None:
    producer = AIOKafkaProducer(
        **kafka.client_options(),
        enable_idempotence=True,
        compression_type="zstd",
        max_request_size=MAX_MESSAGE_BYTES,
    )
    try:
        await start_whole(producer.start)
        for copy in found:
            for value, headers in frames(copy):
                letter = copy.letter
                await producer.send_and_wait(
                    letter.topic, value, key=letter.key, partition=letter.partition, headers=headers
                )
    finally:
        await stop_quietly(producer.stop)


async def _records(kafka: KafkaConnection, starts: Mapping[TopicPartition, int]) -> AsyncIterator[Any]:
    """Yield the committed records of partitions from these offsets, or from what is left, to the present end."""
    consumer = AIOKafkaConsumer(
        **kafka.client_options(),
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    try:
        await start_whole(consumer.start)
        consumer.assign(list(starts))
        firsts, ends = await consumer.beginning_offsets(list(starts)), await consumer.end_offsets(list(starts))
        for place, offset in starts.items():
            consumer.seek(place, max(offset, firsts[place]))
        behind = list(starts)
        while behind := [place for place in behind if await consumer.position(place) < ends[place]]:
            for found in (await consumer.getmany(*behind, timeout_ms=POLL_MS)).values():
                for record in found:
                    yield record
    finally:
        await stop_quietly(consumer.stop)


def _letter(data: bytes | None, joiner: Joiner[None]) -> DeadLetter | None:
    """Return the letter that a record is, or that its last chunk completes."""
    try:
        data = joiner.whole(data or b"", None)
        letter = decode(data) if data else None
    except RecordError:
        return None  # a letter that cannot be read is no reason not to show the others
    return letter if isinstance(letter, DeadLetter) else None
