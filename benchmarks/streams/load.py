"""Topics filled with the events that every variant works on."""

import asyncio
import random
import sys

from aiokafka import AIOKafkaProducer

from benchmarks.streams.events import EVENTS, episode
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.records.config import AssemblyConfig
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics_on_broker import ensure_topics
from rollbus.streams.stages.assembly.stage import AssemblyStage

AT_ONCE = 64
"""Episodes whose events are interleaved, as of so many agents at work."""


def settings(bootstrap_servers: str, namespace: str) -> StreamSettings:
    """Settings of the worker and of the topics: four partitions."""
    return StreamSettings(
        kafka=KafkaConnection(bootstrap_servers=bootstrap_servers), namespace=namespace, event_partitions=4
    )


async def load(
    bootstrap_servers: str, namespace: str, episodes: int, *, at_once: int = AT_ONCE, most_events: int = EVENTS
) -> tuple[int, int]:
    """Make the topics and fill them with so many events of each episode; return records and bytes."""
    stream_settings = settings(bootstrap_servers, namespace)
    await ensure_topics(stream_settings, [AssemblyStage(AssemblyConfig())])
    chance, records, size = random.Random(1), 0, 0
    options = stream_settings.kafka.client_options()
    producer = AIOKafkaProducer(**options, compression_type="zstd", linger_ms=20, max_batch_size=262_144)
    await producer.start()
    try:
        for first in range(0, episodes, at_once):
            several = [(n, episode(n, chance)) for n in range(first, min(first + at_once, episodes))]
            for position in range(most_events):
                for number, events in several:
                    key = f"episode-{number}".encode()
                    await producer.send(namespace + "episode-events", events[position], key=key)
                    records, size = records + 1, size + len(events[position])
        await producer.flush()
    finally:
        await producer.stop()
    return records, size


if __name__ == "__main__":
    print(*asyncio.run(load(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
