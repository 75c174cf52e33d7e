"""Topics → their partitions, as the broker has them now."""

import asyncio
from collections.abc import Collection, Mapping

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.metadata import MetadataRequest

from rollbus.runtime.kafka.clients import new_admin, running
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.errors import ConfigurationError

LOOKS, LOOK_PAUSE_S = 12, 0.25
"""A topic that was made a moment ago is not known to every broker at once."""


async def count_partitions(admin: AIOKafkaAdminClient, topics: Collection[str] | None = None) -> dict[str, int]:
    """Return how many partitions each of these topics has, of all without any; what does not exist is left out.

    A broker that makes topics on demand makes none for this question.
    """
    if topics is not None and not topics:
        return {}
    request = MetadataRequest(None if topics is None else sorted(topics), allow_auto_topic_creation=False)
    described = (await admin._send_request(request)).to_object()["topics"]
    return {topic["topic"]: len(topic["partitions"]) for topic in described if topic["partitions"]}


async def find_partitions(admin: AIOKafkaAdminClient, topics: Collection[str]) -> list[TopicPartition]:
    """Return the partitions of those topics that exist, sorted."""
    counts = await count_partitions(admin, topics)
    return [TopicPartition(topic, number) for topic in sorted(counts) for number in range(counts[topic])]


async def places_of(connection: KafkaConnection, topics: Collection[str]) -> list[TopicPartition]:
    """Do the same with a connection of its own."""
    async with running(connection, new_admin(connection), what="looking for topics") as admin:
        return await find_partitions(admin, topics)


async def require_topics(connection: KafkaConnection, topics: Collection[str]) -> Mapping[str, int]:
    """Return how many partitions each topic has; ConfigurationError names every one that is not there."""
    counts: dict[str, int] = {}
    async with running(connection, new_admin(connection), what="looking for topics") as admin:
        for _ in range(LOOKS):
            counts = await count_partitions(admin, topics)
            if counts.keys() >= set(topics):
                return counts
            await asyncio.sleep(LOOK_PAUSE_S)
    missing = sorted(set(topics) - counts.keys())
    raise ConfigurationError(
        f"topics {', '.join(missing)} do not exist on {connection.bootstrap_servers}; "
        "create them with `rollbus topics create`, or correct `namespace`"
    )
