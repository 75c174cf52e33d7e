"""Kafka's consumer groups → rows of the page: how far each is behind, topic by topic."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.kafka.lag import GroupLag, open_lag
from rollbus.schemas.errors import UnavailableError

ANSWER_S = 5.0
"""Longest wait for Kafka; a page that waits longer looks broken."""
ANSWER_HOLDS_S, FAILURE_HOLDS_S = 2.0, 15.0
"""How long an answer, and how long a failure, is repeated: several browsers ask, and each redraw asks too."""


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
        self._lock = asyncio.Lock()
        self._holds_until_s = 0.0
        self._answer: list[LagRow] | UnavailableError = []

    async def ask(self) -> list[LagRow]:
        """Return every group in every topic that it reads, the furthest behind first; raises UnavailableError."""
        async with self._lock:
            if time.monotonic() >= self._holds_until_s:
                await self._refresh()
        if isinstance(self._answer, UnavailableError):
            raise self._answer
        return self._answer

    async def _refresh(self) -> None:
        try:
            async with asyncio.timeout(ANSWER_S), open_lag(self._connection) as lag:
                self._answer = make_lag_rows(self._namespace, await lag.read_namespace(self._namespace))
            self._holds_until_s = time.monotonic() + ANSWER_HOLDS_S
        except (UnavailableError, TimeoutError) as error:
            self._answer = error if isinstance(error, UnavailableError) else self._connection.unavailable(error)
            self._holds_until_s = time.monotonic() + FAILURE_HOLDS_S


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
