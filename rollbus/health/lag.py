"""Kafka's consumer groups → rows of the page: how far each is behind, topic by topic."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

from rollbus.health.held_answer import HeldAnswer
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.kafka.lag import GroupLag, open_lag

ANSWER_S = 5.0
"""Longest wait for Kafka; a page that waits longer looks broken."""


@dataclass(frozen=True, slots=True)
class LagRow:
    """One consumer group in one topic."""

    group: str
    """Without the namespace: a stage, a stage and its run, the trainer of a model, the sink."""
    topic: str
    """Without the namespace."""
    members: int
    """Processes that read now; with 0 no process reads."""
    partitions: int
    lag: int


class LagOfGroups:
    """The consumer groups of a namespace; remembers an answer for a moment."""

    def __init__(self, connection: KafkaConnection, namespace: str) -> None:
        self._connection = connection
        self._namespace = namespace
        self._rows = HeldAnswer(self._read)

    async def ask(self) -> list[LagRow]:
        """Return every group in every topic that it reads, the furthest behind first; raises UnavailableError."""
        return await self._rows.get()

    async def _read(self) -> list[LagRow]:
        try:
            async with asyncio.timeout(ANSWER_S), open_lag(self._connection) as lag:
                return make_lag_rows(self._namespace, await lag.read_namespace(self._namespace))
        except TimeoutError as error:
            raise self._connection.unavailable(error) from error


def make_lag_rows(namespace: str, groups: Mapping[str, GroupLag]) -> list[LagRow]:
    """Add partitions up, and leave out empty topics without a committed offset. Pure."""
    rows = []
    for name, group in groups.items():
        for topic, of_topic in groupby(group.partitions, key=lambda partition: partition.topic):
            partitions = list(of_topic)
            if any(partition.committed is not None or partition.lag for partition in partitions):
                behind = sum(partition.lag for partition in partitions)
                names = (name.removeprefix(namespace), topic.removeprefix(namespace))
                rows.append(LagRow(*names, members=group.members, partitions=len(partitions), lag=behind))
    return sorted(rows, key=lambda row: (-row.lag, row.group, row.topic))
