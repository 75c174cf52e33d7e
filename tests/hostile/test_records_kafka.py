"""Batches that expand to gigabytes or that no client can read, through a real broker and a real worker."""

import tracemalloc
from collections.abc import Mapping
from functools import cache

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from rollbus.consumers.dead_letters_kafka import read_dead_letters
from rollbus.runtime.kafka.reading import read_from
from rollbus.schemas.codec import decode
from rollbus.schemas.errors import UndecodableError
from rollbus.schemas.topics import EPISODE_EVENTS
from rollbus.streams.kafka.topics_on_broker import ensure_topics
from tests.faults.episodes import Traffic, pipeline
from tests.hostile.raw_batches import make_batch, make_record, send_raw
from tests.services.streams.fixtures import stream_settings
from tests.services.streams.process import running

pytestmark = pytest.mark.services

BOMB_BYTES = 231_000_000
MEMORY_BYTES = 210_000_000
"""Less than one bomb; the room for a batch and what is read from it fit."""
MANY = 50_000
"""Records of one batch."""


@cache
def bombs() -> Mapping[str, tuple[bytes, int]]:
    """A name for each batch, its bytes, and how many records its head promises. Made once: they take seconds."""
    zeros = make_record(0, b"k", bytes(BOMB_BYTES))
    good = make_record(1, b"k", b"small")
    big = [make_record(place, b"k", bytes(8_000_000)) for place in range(8)]
    return {
        "zstd": (make_batch([zeros], 4), 1),
        "gzip": (make_batch([zeros], 1), 1),
        "lz4": (make_batch([zeros], 3), 1),
        "snappy": (make_batch([zeros], 2), 1),
        "a bomb and a record": (make_batch([zeros, good], 4), 2),
        "a header that is not a text": (make_batch([make_record(0, b"k", b"v", [(b"\xff\xfe", b"x")])], 0), 1),
        "an offset far ahead": (make_batch([make_record(2**31 - 2, b"k", b"v")], 0), 1),
        "an offset before": (make_batch([make_record(-7, b"k", b"v")], 0), 1),
        "very many headers": (make_batch([make_record(0, b"k", b"v", [(b"", None)] * 600_000)], 4), 1),
        "very many records": (make_batch([make_record(n, None, None) for n in range(MANY)], 4), MANY),
        **{f"many that each fit {number}": (make_batch(big, 4), 8) for number in range(4)},
    }


async def put(kafka: str, topic: str) -> list[str]:
    """Write all bombs that the broker takes; return the names of those that it refuses."""
    refused = []
    for name, batch in bombs().items():
        try:
            await send_raw(kafka, topic, 0, batch)
        except KafkaError:
            refused.append(name)
    return refused


async def test_no_batch_makes_a_reader_spend_more_than_its_bound(kafka: str, namespace: str) -> None:
    settings = stream_settings(kafka, namespace)
    await ensure_topics(settings, pipeline())
    topic = EPISODE_EVENTS.full_name(namespace)
    refused = await put(kafka, topic)
    await send_raw(kafka, topic, 0, (make_batch([make_record(0, b"k", b"the last")], 0), 1))
    tracemalloc.start()
    messages, last, count = [], None, 0
    async for record in read_from(settings.kafka, {TopicPartition(topic, 0): 0}):
        count, last = count + 1, record.value
        if record.value is not None and record.value.startswith(b"rollbus: unreadable"):
            with pytest.raises(UndecodableError) as error:
                decode(record.value)
            messages.append(str(error.value))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert last == b"the last"
    assert peak < MEMORY_BYTES
    assert count > MANY
    assert len(messages) == 9 - len(set(refused)), (refused, messages)
    assert any("offsets 0 to 0" in message and "zstd" in message for message in messages)


async def test_a_worker_continues_past_unreadable_batches(kafka: str, namespace: str) -> None:
    settings = stream_settings(kafka, namespace)
    await ensure_topics(settings, pipeline())
    traffic = Traffic(settings)
    async with running(settings, pipeline()):
        await traffic.send(range(2))
        for name in (
            "zstd",
            "a bomb and a record",
            "a header that is not a text",
            "very many headers",
            "an offset far ahead",
        ):
            await send_raw(kafka, EPISODE_EVENTS.full_name(namespace), 0, bombs()[name])
        await traffic.send(range(2, 4))
        await traffic.until_trained()
    letters = await read_dead_letters(settings.kafka, settings.namespace)
    assert len(letters) == 5
    assert all("unreadable batch: offsets" in letter.message for letter in letters)
