"""Kafka's consumer groups → how far each is behind, topic by topic: stages, trainers and the sink alike.

A group's lag is the log's end less what the group has committed, asked of Kafka when the page asks. A topic that a
group has never committed is not told, as nothing is known of it. A transaction ends with a marker that has an offset of
its own, so a stage that has read everything may stand one or two behind.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from rollbus.schemas.errors import UnavailableError
from rollbus.schemas.kafka_connection import KafkaConnection
from rollbus.schemas.offsets_kafka import committed_offsets
from rollbus.schemas.starting_kafka import start_whole
from rollbus.schemas.stopping_kafka import stop_quietly

ANSWER_S = 5.0
"""Longest wait for Kafka; a page that waits longer looks broken."""
FRESH_S, DOWN_S = 2.0, 15.0
"""How long an answer, and how long a failure, is told again: several browsers ask, and drawing anew asks too."""


@dataclass(frozen=True, slots=True)
class GroupLag:
    """One consumer group in one topic."""

    group: str
    """Without the namespace: a stage, a stage and its run, the trainer of a model, the sink."""
    topic: str
    """Without the namespace."""
    members: int
    """Processes that read now; 0 means that nobody does."""
    partitions: int
    lag: int


class LagOfGroups:
    """The consumer groups of a namespace; remembers an answer for a moment."""

    def __init__(self, connection: KafkaConnection, namespace: str) -> None:
        self._connection = connection
        self._namespace = namespace
        self._lock = asyncio.Lock()
        self._until = 0.0
        self._told: list[GroupLag] | UnavailableError = []

    async def ask(self) -> list[GroupLag]:
        """Return every group in every topic it has committed, the furthest behind first; raises UnavailableError."""
        async with self._lock:
            if time.monotonic() >= self._until:
                await self._look()
        if isinstance(self._told, UnavailableError):
            raise self._told
        return self._told

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                self._told = await read_lags(self._connection, self._namespace)
            self._until = time.monotonic() + FRESH_S
        except (KafkaError, OSError, TimeoutError) as error:
            self._told = self._connection.unavailable(error)
            self._until = time.monotonic() + DOWN_S


async def read_lags(connection: KafkaConnection, namespace: str) -> list[GroupLag]:
    """Ask Kafka; raises KafkaError."""
    admin = AIOKafkaAdminClient(**connection.client_options())
    consumer = AIOKafkaConsumer(**connection.client_options(), isolation_level="read_committed")
    try:
        await start_whole(admin.start)
        names = sorted(
            group for group, _ in map(tuple, await admin.list_consumer_groups()) if group.startswith(namespace)
        )
        if not names:
            return []
        members = _members(await admin.describe_consumer_groups(names))
        committed = {name: await committed_offsets(admin, name) for name in names}
        places = sorted({place for offsets in committed.values() for place in offsets})
        await start_whole(consumer.start)
        begins, ends = await consumer.beginning_offsets(places), await consumer.end_offsets(places)
    finally:
        await stop_quietly(admin.close, consumer.stop)
    return summed(namespace, members, committed, begins, ends)


def summed(
    namespace: str,
    members: Mapping[str, int],
    committed: Mapping[str, Mapping[TopicPartition, Any]],
    begins: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> list[GroupLag]:
    """Add partitions up. Pure."""
    found: dict[tuple[str, str], list[int]] = {}
    for group, offsets in committed.items():
        for place, at in offsets.items():
            if at.offset >= 0:
                behind = max(0, ends[place] - max(begins[place], at.offset))
                found.setdefault((group, place.topic), []).append(behind)
    lags = [
        GroupLag(
            group=group.removeprefix(namespace),
            topic=topic.removeprefix(namespace),
            members=members.get(group, 0),
            partitions=len(each),
            lag=sum(each),
        )
        for (group, topic), each in found.items()
    ]
    return sorted(lags, key=lambda one: (-one.lag, one.group, one.topic))


def _members(answers: list[Any]) -> dict[str, int]:
    """Return how many members each group has, by its id."""
    return {group[1]: len(group[5]) for answer in answers for group in answer.groups}
