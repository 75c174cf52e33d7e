"""The events that every variant works on: episodes of four turns of 200 tokens and 2 kB of text, a reward, an end."""

import asyncio
import random
import sys

from aiokafka import AIOKafkaProducer

from rollbus.schemas.codec import encode
from rollbus.schemas.events import EpisodeEnded, EpisodeStarted, Message, RewardReported, TurnRecorded, WriterClosed
from rollbus.schemas.ids import event_id
from rollbus.schemas.kafka_connection import KafkaConnection
from rollbus.schemas.tokens import encode_logprobs, encode_token_ids
from rollbus.streams.settings import StreamSettings
from rollbus.streams.topics_kafka import ensure_topics

TURNS = 4
TOKENS = 200
TEXT = "The quick brown fox considers its next move with care. " * 37
AT_ONCE = 64
"""Episodes whose events are interleaved, as of so many agents at work."""


def settings(bootstrap_servers: str, namespace: str) -> StreamSettings:
    """Settings of the worker and of the topics: four partitions."""
    return StreamSettings(
        kafka=KafkaConnection(bootstrap_servers=bootstrap_servers), namespace=namespace, event_partitions=4
    )


def episode(
    number: int, chance: random.Random, *, group_id: str | None = None, group_size: int | None = None
) -> list[bytes]:
    """Return the events of one episode, encoded; members of one group share their first prompt."""
    name, tokens = f"episode-{number}", [chance.randrange(150_000) for _ in range(TOKENS)]
    events: list[bytes] = []

    def envelope() -> dict[str, object]:
        sequence = len(events)
        ids = {"episode_id": name, "root_episode_id": name, "writer_id": "w", "sequence": sequence}
        times = {"occurred_at_ms": sequence, "episode_started_at_ms": 0}
        return {"event_id": event_id(name, "w", sequence), **ids, **times}

    group = {"group_id": group_id, "group_size": group_size}
    events.append(encode(EpisodeStarted(**envelope(), task="bench", example_id=str(number // 8), **group)))
    prompt = list(range(50))
    for _ in range(TURNS):
        turn = TurnRecorded(
            **envelope(),
            model="agent@0",
            policy_version=0,
            added_messages=(Message(role="user", content=TEXT),),
            completion=Message(role="assistant", content="7"),
            prompt_token_ids=encode_token_ids(prompt),
            completion_token_ids=encode_token_ids(tokens),
            logprobs=encode_logprobs([-0.5] * TOKENS),
            finish_reason="stop",
            trainable=True,
        )
        events.append(encode(turn))
        prompt = [*prompt, *tokens, *tokens[:10]]
    events.append(encode(RewardReported(**envelope(), value=1.0)))
    events.append(encode(EpisodeEnded(**envelope(), writer_ids=("w",))))
    events.append(encode(WriterClosed(**envelope(), count=len(events))))
    return events


async def load(
    bootstrap_servers: str, namespace: str, episodes: int, *, at_once: int = AT_ONCE, most_events: int = TURNS + 4
) -> tuple[int, int]:
    """Make the topics and fill them with so many events of each episode; return records and bytes."""
    from rollbus.schemas.config import AssemblyConfig
    from rollbus.streams.assembly import AssemblyStage

    made = settings(bootstrap_servers, namespace)
    await ensure_topics(made, [AssemblyStage(AssemblyConfig())])
    chance, records, size = random.Random(1), 0, 0
    options = made.kafka.client_options()
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
