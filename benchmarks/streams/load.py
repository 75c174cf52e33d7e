"""Topics filled with the events that every variant works on."""

import random
from collections.abc import Sequence
from typing import Any

from aiokafka import AIOKafkaProducer

from benchmarks.streams.events import LONG, Shape, episode
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.codec import encode
from rollbus.schemas.records.config import AssemblyConfig
from rollbus.schemas.records.control import Tick
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics_on_broker import ensure_topics
from rollbus.streams.stages.assembly.stage import AssemblyStage

AT_ONCE = 64
"""Episodes whose events are interleaved, as of so many agents at work."""
TICK_MS = 1_000


def settings(bootstrap_servers: str, namespace: str) -> StreamSettings:
    """Settings of the worker and of the topics: four partitions."""
    return StreamSettings(
        kafka=KafkaConnection(bootstrap_servers=bootstrap_servers), namespace=namespace, event_partitions=4
    )


async def load(
    bootstrap_servers: str,
    namespace: str,
    episodes: int,
    *,
    at_once: int = AT_ONCE,
    shape: Shape = LONG,
    stages: Sequence[Any] = (AssemblyStage(AssemblyConfig()),),
    ticks: bool = False,
) -> tuple[int, int]:
    """Make the topics of the stages, and fill them with episodes; return records and bytes.

    Every other episode earns nothing, so that groups of them have something to teach. With `ticks` a second ends after
    each `at_once` episodes, as a worker's ticker ends it.
    """
    stream_settings = settings(bootstrap_servers, namespace)
    await ensure_topics(stream_settings, stages)
    chance, records, size, topic = random.Random(1), 0, 0, namespace + "episode-events"
    options = stream_settings.kafka.client_options()
    producer = AIOKafkaProducer(**options, compression_type="zstd", linger_ms=20, max_batch_size=262_144)
    await producer.start()
    try:
        for second, first in enumerate(range(0, episodes, at_once)):
            numbers = range(first, min(first + at_once, episodes))
            episodes_at_once = [episode(number, chance, reward=float(number % 2), shape=shape) for number in numbers]
            for events in zip(*episodes_at_once, strict=True):
                for number, event in zip(numbers, events, strict=True):
                    await producer.send(topic, event, key=f"episode-{number}".encode())
                    records, size = records + 1, size + len(event)
            if ticks:
                now_ms = second * TICK_MS
                tick = Tick(number=second, stream_time_ms=now_ms, wall_clock_ms=now_ms, interval_ms=TICK_MS)
                for partition in range(stream_settings.event_partitions):
                    await producer.send(topic, encode(tick), partition=partition)
                    records, size = records + 1, size + len(encode(tick))
        await producer.flush()
    finally:
        await producer.stop()
    return records, size
