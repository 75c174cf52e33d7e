"""A log as live leaves it: the events of the other benchmarks, and a tick in every partition for a second of them.

Every other episode gets no reward, so that groups have something to teach and batches are cut.
"""

import asyncio
import random
import sys

from aiokafka import AIOKafkaProducer

from benchmarks.replay.work import ASSEMBLY, live_stages
from benchmarks.streams.events import LONG, Shape, episode
from benchmarks.streams.load import settings
from benchmarks.streams.ours import TimedStage
from rollbus.schemas.codec import encode
from rollbus.schemas.records.control import Tick
from rollbus.streams.kafka.topics_on_broker import ensure_topics

AT_ONCE = 128
"""Episodes whose events are interleaved, as of so many agents at work; each takes a second: 1,024 events between two
ticks, 256 in each partition."""
TICK_MS = 1_000


async def load(
    bootstrap_servers: str, namespace: str, episodes: int, *, at_once: int = AT_ONCE, shape: Shape = LONG
) -> tuple[int, int]:
    """Make the topics and fill them; return records and bytes."""
    stream_settings = settings(bootstrap_servers, namespace)
    await ensure_topics(stream_settings, live_stages("all", TimedStage(ASSEMBLY)))
    chance, records, size = random.Random(1), 0, 0
    topic = namespace + "episode-events"
    producer = AIOKafkaProducer(
        **stream_settings.kafka.client_options(), compression_type="zstd", linger_ms=20, max_batch_size=262_144
    )
    await producer.start()
    try:
        for second, first in enumerate(range(0, episodes, at_once)):
            several = [
                (n, episode(n, chance, reward=float(n % 2), shape=shape))
                for n in range(first, min(first + at_once, episodes))
            ]
            for events in zip(*(events for _, events in several), strict=True):
                for (number, _), event in zip(several, events, strict=True):
                    await producer.send(topic, event, key=f"episode-{number}".encode())
                    records, size = records + 1, size + len(event)
            tick = encode(_tick(second))
            for partition in range(stream_settings.event_partitions):
                await producer.send(topic, tick, partition=partition)
                records, size = records + 1, size + len(tick)
        await producer.flush()
    finally:
        await producer.stop()
    return records, size


def _tick(second: int) -> Tick:
    return Tick(number=second, stream_time_ms=second * TICK_MS, wall_clock_ms=second * TICK_MS, interval_ms=TICK_MS)


if __name__ == "__main__":
    print(*asyncio.run(load(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
