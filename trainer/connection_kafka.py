"""What the trainer's Kafka clients have in common, and what their failures mean to the trainer."""

import asyncio
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import IllegalOperation, KafkaError, ProducerFenced, UnknownTopicOrPartitionError

from rollbus.schemas.errors import ConfigurationError, FencedError, UnavailableError
from rollbus.schemas.kafka_connection import KafkaConnection, how_it_failed
from rollbus.schemas.topics import MAX_MESSAGE_BYTES

METADATA_LOOKS, METADATA_PAUSE_S = 12, 0.25
"""A topic that was made a moment ago is not known to every broker at once."""
FETCH_WAIT_MS = 10
"""How long the broker may hold back a fetch at a partition's end: the next seek or question on the connection waits."""
IDLE_FETCH_WAIT_MS = 500
"""The same where waiting for what comes next is all there is to do."""


def reader_options(connection: KafkaConnection) -> dict[str, Any]:
    """Return what every consumer takes: committed records only, and no jump when retention was faster."""
    return {
        **connection.client_options(),
        "isolation_level": "read_committed",
        "enable_auto_commit": False,
        "auto_offset_reset": "none",
        "max_partition_fetch_bytes": 4 * MAX_MESSAGE_BYTES,
        "fetch_max_wait_ms": FETCH_WAIT_MS,
    }


@contextmanager
def kafka_errors(what: str) -> Iterator[None]:
    """Turn the client's errors into ours: fenced, or away for now."""
    try:
        yield
    except ProducerFenced as error:
        raise FencedError(f"{what}: a newer trainer of this model has taken over") from error
    except (KafkaError, IllegalOperation, OSError, TimeoutError) as error:
        raise UnavailableError(f"{what}: Kafka {how_it_failed(error)}") from error


async def partition_counts(connection: KafkaConnection, topics: Collection[str]) -> Mapping[str, int]:
    """Return how many partitions each topic has; ConfigurationError names every one that is not there."""
    with kafka_errors(f"looking for topics at {connection.bootstrap_servers}"):
        admin = AIOKafkaAdminClient(**connection.client_options())
        try:
            await admin.start()
            counts: dict[str, int] = {}
            for _ in range(METADATA_LOOKS):
                counts = await _described(admin, topics)
                if counts.keys() >= set(topics):
                    return counts
                await asyncio.sleep(METADATA_PAUSE_S)
        finally:
            await admin.close()
    missing = sorted(set(topics) - counts.keys())
    raise ConfigurationError(
        f"topics {', '.join(missing)} do not exist on {connection.bootstrap_servers}; "
        "create them with `rollbus topics create`, or correct `namespace`"
    )


async def _described(admin: AIOKafkaAdminClient, topics: Collection[str]) -> dict[str, int]:
    described = await admin.describe_topics(list(topics))
    return {
        each["topic"]: len(each["partitions"])
        for each in described
        if each["error_code"] != UnknownTopicOrPartitionError.errno and each["partitions"]
    }
