"""Consumer groups → how far each is behind. This is the one definition of lag.

The lag of a group in a partition is the partition's end less the offset that the group has committed. The end is that
of all records, those of a transaction that is still open too: a transaction's commit is answered before its records can
be read, and a group that had not read them would seem to be at the end. Where the group has committed nothing, or
retention has deleted what it had not read, the partition's first offset counts instead: what is not there cannot be
read. Offsets are counted, so the mark that ends a transaction counts too. The lag in a topic is the sum over its
partitions.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from rollbus.runtime.kafka.clients import kafka_errors, new_admin, new_consumer, start_client, stop_clients
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.kafka.groups import committed_offsets, describe_groups, list_groups
from rollbus.runtime.kafka.partitions import find_partitions
from rollbus.runtime.kafka.reading import read_bounds
from rollbus.schemas.topics import TOPICS

CLAIMS = ".claims."
"""In the name of a group that holds claims and reads nothing, so it has no lag."""


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition and what a group has read of it."""

    topic: str
    partition: int
    committed: int | None
    """The next offset to read; None before the first commit."""
    begin: int
    end: int

    @property
    def lag(self) -> int:
        """Offsets that are there and not read."""
        return offsets_behind(self.committed, self.begin, self.end)


@dataclass(frozen=True, slots=True)
class GroupLag:
    """One consumer group."""

    state: str
    """Kafka's word, such as Stable or Empty."""
    members: int
    """Processes that read now; with 0 no process reads."""
    partitions: tuple[PartitionLag, ...]

    @property
    def lag(self) -> int:
        """Return the sum over all partitions."""
        return sum(partition.lag for partition in self.partitions)


def offsets_behind(committed: int | None, begin: int, end: int) -> int:
    """Return the lag in one partition."""
    return max(0, end - max(begin, committed or 0))


def count_behind(first: Iterable[PartitionLag], now: Iterable[PartitionLag]) -> int:
    """Return how many offsets of the log as it was at first a group has not read now."""
    ends = {(place.topic, place.partition): place.end for place in first}
    return sum(
        offsets_behind(place.committed, place.begin, ends.get((place.topic, place.partition), 0)) for place in now
    )


class LagReader:
    """Asks a broker for lag; comes from `open_lag`."""

    def __init__(self, connection: KafkaConnection, admin: AIOKafkaAdminClient, consumer: AIOKafkaConsumer) -> None:
        self._connection, self._admin, self._consumer = connection, admin, consumer

    async def read(self, groups: Mapping[str, Collection[str] | None]) -> dict[str, GroupLag]:
        """Return each group's lag in these topics; with None, in those that it has committed or is assigned.

        Topics that do not exist are left out. Raises UnavailableError.
        """
        with kafka_errors(self._connection, "asking for lag"):
            descriptions = await describe_groups(self._admin, groups)
            committed = {name: await committed_offsets(self._admin, name) for name in groups}
            topics = {
                name: {place.topic for place in committed[name]}
                | {place.topic for member in descriptions[name].members for place in member.partitions}
                if group_topics is None
                else set(group_topics)
                for name, group_topics in groups.items()
            }
            places = await find_partitions(self._admin, set[str]().union(*topics.values()))
            if set(places) - self._consumer.assignment():
                self._consumer.assign(places)  # else it learns of one topic at a time, 0.1 s for each
                self._consumer.pause(*places)
            bounds = await read_bounds(self._consumer, places)
        return {
            name: GroupLag(
                descriptions[name].state,
                len(descriptions[name].members),
                tuple(
                    _lag_in(place, committed[name], bounds[place]) for place in places if place.topic in topics[name]
                ),
            )
            for name in groups
        }

    async def read_namespace(self, namespace: str) -> dict[str, GroupLag]:
        """Return the lag of every group whose name begins with this; raises UnavailableError.

        The sink reads every topic: those that it has not begun count too, as `rollbus sink status` counts them.
        """
        with kafka_errors(self._connection, "asking for consumer groups"):
            names = [name for name in await list_groups(self._admin, namespace) if CLAIMS not in name]
        every = {f"{namespace}sink": [topic.full_name(namespace) for topic in TOPICS]}
        return await self.read({name: every.get(name) for name in names})


@asynccontextmanager
async def open_lag(connection: KafkaConnection) -> AsyncIterator[LagReader]:
    """Connect to ask for lag, once or again and again; raises UnavailableError."""
    admin, consumer = new_admin(connection), new_consumer(connection, isolation_level="read_uncommitted")
    try:
        with kafka_errors(connection):
            await start_client(admin)
            await start_client(consumer)
        yield LagReader(connection, admin, consumer)
    finally:
        await stop_clients(admin, consumer)


def _lag_in(place: TopicPartition, committed: Mapping[TopicPartition, object], bounds: tuple[int, int]) -> PartitionLag:
    offset: int = getattr(committed.get(place), "offset", -1)
    begin, end = bounds
    return PartitionLag(place.topic, place.partition, offset if offset >= 0 else None, begin, end)
