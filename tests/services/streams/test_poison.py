"""Poison through a real worker of all stages: each record is taken or a dead letter, and the good ones are trained."""

import hashlib
import random
import struct
from functools import partial
from pathlib import Path

import pytest
from aiokafka.errors import MessageSizeTooLargeError

from rollbus.consumers.dead_letters_kafka import read_dead_letters
from rollbus.schemas.codec import encode
from rollbus.schemas.limits import MAX_LETTER_BYTES
from rollbus.schemas.topics import ALIASES, EPISODE_EVENTS, RUN_LOG, SCORES, TRAJECTORIES, Topic
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics_on_broker import ensure_topics
from tests.builders import make_turn
from tests.faults.episodes import Traffic, pipeline
from tests.faults.log_contents import read_everything
from tests.faults.oracle import Pair, check_log
from tests.services.commands import say_in_thread, write_config
from tests.services.streams.fixtures import send, stream_settings
from tests.services.streams.process import running
from tests.streams.exactly_once.poison import fuzzed_frames
from tests.waiting import until_found

pytestmark = pytest.mark.services

POISONED_TOPICS = (ALIASES, EPISODE_EVENTS, TRAJECTORIES, SCORES, RUN_LOG)
FUZZED_RECORDS = 1_000
"""Into each stage's input."""


def by_hand() -> list[Pair]:
    """One record of each kind of poison that has a name."""
    whole = encode(make_turn("by-hand"))
    unequal = bytearray(encode(make_turn("by-hand", completion=(4, 5), logprobs=(-0.5, -0.25))))
    place = unequal.index(struct.pack("<ff", -0.5, -0.25))
    not_a_number = bytearray(unequal)
    not_a_number[place : place + 4] = struct.pack("<f", float("nan"))
    del unequal[place : place + 4]
    unequal[place - 1] = 8  # the length before it, as Avro writes 4
    return [
        (b"k", bytes(MAX_LETTER_BYTES)),  # as much as is kept whole
        (b"k", whole[:30]),
        (b"k", b"\xc3\x01" + bytes(8) + whole[10:]),  # an unknown schema
        (b"k", b"\x00\x00\x00\x00\x01confluent"),
        (b"k", random.Random(1).randbytes(1_000_000)),
        (b"\xff\xfe", whole),
        (b"k", whole.replace(b"your move", b"your \xff\xfeve")),
        (b"k", None),
        (b"k", b""),
        (b"k", bytes(not_a_number)),
        (b"k", bytes(unequal)),
    ]


def fuzzed_pairs(topic: Topic) -> list[Pair]:
    """Fuzzed records under keys that repeat."""
    return [
        (f"k{n % 7}".encode(), value) for n, value in enumerate(fuzzed_frames(topic, FUZZED_RECORDS, seed=9)) if n % 50
    ]


async def refused_places(settings: StreamSettings) -> set[str]:
    """Return the hashes of the whole values of all dead letters."""
    return {letter.value_sha256 for letter in await read_dead_letters(settings.kafka, settings.namespace)}


async def test_poison_ends_no_worker_and_every_record_of_it_is_accounted_for(
    kafka: str, namespace: str, tmp_path: Path
) -> None:
    settings = stream_settings(kafka, namespace)
    await ensure_topics(settings, pipeline())
    traffic = Traffic(settings)
    async with running(settings, pipeline()):
        await traffic.send(range(2))
        for topic, pairs in [(EPISODE_EVENTS, by_hand()), *((t, fuzzed_pairs(t)) for t in POISONED_TOPICS)]:
            await send(settings, topic.name, pairs)
            traffic.published += [(topic, pair) for pair in pairs]
        with pytest.raises(MessageSizeTooLargeError):
            await send(settings, EPISODE_EVENTS.name, [(b"k", bytes(settings.kafka.max_message_bytes + 1))])
        await traffic.send(range(2, 4))
        await traffic.until_trained()
        named = {"" if value is None else hashlib.sha256(value).hexdigest() for _, value in by_hand()[:9]}
        await until_found(lambda: refused_places(settings), "not all poison is refused", is_enough=named.issubset)
    contents = await read_everything(settings, pipeline())
    await check_log(contents, pipeline(), traffic.published)
    assert len(contents.dead_letters) > FUZZED_RECORDS
    cli = partial(say_in_thread, write_config(tmp_path, kafka, namespace), "dead-letters")
    assert "InvalidRecordError" in await cli("list")
    letter = contents.dead_letters[0]
    assert letter.error_class in await cli("show", f"{letter.topic}:{letter.partition}:{letter.offset}")
    assert "would reinject" in await cli("reinject", "--class", "UndecodableError", "--all", "--dry-run")
    origin = f"{letter.topic}:{letter.partition}:{letter.offset}"
    assert "as attempt 2" in await cli("reinject", origin)
