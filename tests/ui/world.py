"""A broker on which two workers live, a sink is silent, a step was made, and a record became a dead letter."""

import asyncio
import os
import socket
import time
from dataclasses import replace

from rollbus.runtime.kafka.clients import new_producer, running
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.codec import encode
from rollbus.schemas.records.health import Heartbeat
from rollbus.schemas.topics import DEAD_LETTERS, HEARTBEATS, TRAINING_STEPS
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics_on_broker import ensure_topics
from tests.builders import make_step

HOUR_MS = 3_600_000


async def write(connection: KafkaConnection) -> None:
    """Make the topics, and write what the processes said."""
    settings = StreamSettings(kafka=connection, event_partitions=1)
    await ensure_topics(settings)
    now_ms = int(time.time() * 1000)
    step = replace(make_step(7), started_at_ms=now_ms - 301_000, completed_at_ms=now_ms - 300_000)
    async with running(connection, new_producer(connection)) as producer:
        await producer.send_and_wait(TRAINING_STEPS.full_name(settings.namespace), encode(step), b"main")
        await producer.send_and_wait(DEAD_LETTERS.full_name(settings.namespace), b"one", b"key")
        topic = HEARTBEATS.full_name(settings.namespace)
        await producer.partitions_for(topic)  # a beat that waits to be sent is of a clock that is slow
        for kind, number, interval_ms in (("worker", 1, HOUR_MS), ("worker", 2, HOUR_MS), ("sink", 3, 1)):
            beat = make_beat(kind, number, interval_ms)
            await producer.send_and_wait(topic, encode(beat), beat.process.encode())


def make_beat(kind: str, number: int, interval_ms: int) -> Heartbeat:
    """Return the one beat of a process that beats so often."""
    now_ms = int(time.time() * 1000)
    return Heartbeat(
        process=f"{kind}-{number}",
        kind=kind,
        host=socket.gethostname(),
        pid=os.getpid(),
        version="0.1.0",
        number=1,
        interval_ms=interval_ms,
        started_at_ms=now_ms,
        beat_at_ms=now_ms,
        holds=("assembly[0]",) if kind == "worker" else (),
    )


def write_now(bootstrap_servers: str) -> None:
    """Write it from a program without a loop."""
    asyncio.run(write(KafkaConnection(bootstrap_servers=bootstrap_servers)))
