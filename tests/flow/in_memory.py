"""All stages over a log in memory: the same pure steps as live, without Kafka and Faust.

Records go through in rounds: all records before a tick pass through every stage before the tick does, so one order of
publishing gives one output. Batch bounds and the order of partitions are arguments: only the order in which the
partitions of a stage reach the next may depend on them.
"""

import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollbus.schemas.codec import encode
from rollbus.schemas.records.control import ConfigApplied, Tick
from rollbus.schemas.records.trajectories import Location, Trajectory
from rollbus.schemas.topics import DEFAULT_NAMESPACE, STAGE_INPUTS, Topic
from rollbus.streams.pipeline import AnyStage
from rollbus.streams.state.payload import bind_payload
from rollbus.streams.state.stage import Incoming


@dataclass(slots=True)
class Log:
    """Topics as lists of records, one list per partition."""

    partitions: int = 1
    namespace: str = DEFAULT_NAMESPACE
    topics: dict[str, list[list[Incoming]]] = field(default_factory=dict)

    def of(self, topic: Topic) -> list[list[Incoming]]:
        """Return a topic's partitions."""
        count = self.partitions if topic.partitions == "events" else 1
        return self.topics.setdefault(topic.name, [[] for _ in range(count)])

    def append(self, topic: Topic, key: str, record: Any, partition: int | None = None) -> Incoming:
        """Add a record to its key's partition, or to the one named."""
        partitions = self.of(topic)
        number = by_checksum(key.encode(), len(partitions)) if partition is None else partition
        data = encode(record)
        location = Location(topic=topic.full_name(self.namespace), partition=number, offset=len(partitions[number]))
        incoming = Incoming(record, key, location, data)
        partitions[number].append(incoming)
        return incoming

    def records(self, topic: Topic) -> list[Any]:
        """Return all records of a topic, partition after partition."""
        return [incoming.record for partition in self.of(topic) for incoming in partition]


@dataclass(frozen=True, slots=True)
class LogPayload:
    """The trajectories of a log in memory, by location."""

    log: Log

    async def fetch(self, locations: Collection[Location]) -> Mapping[Location, Trajectory]:
        """Return those that exist."""
        found = {}
        for location in locations:
            partitions = self.log.topics.get(location.topic.removeprefix(self.log.namespace), [])
            records = partitions[location.partition] if location.partition < len(partitions) else []
            if location.offset < len(records) and isinstance(records[location.offset].record, Trajectory):
                found[location] = records[location.offset].record
        return found


@dataclass(slots=True)
class Reader:
    """One stage on one partition: its state, its position, and the rows that it has written to its changelog."""

    stage: AnyStage
    partition: int
    state: Any
    position: int = 0
    changelog: dict[bytes, bytes] = field(default_factory=dict)
    changelog_bytes: int = 0

    async def run(self, log: Log, at_most: int | None = None) -> bool:
        """Process one batch; return False if there was nothing to read."""
        records = log.of(self.stage.input)[self.partition]
        end = len(records) if at_most is None else min(len(records), self.position + at_most)
        batch = records[self.position : end]
        if not batch:
            return False
        answers = await self.stage.answer(self.state, batch)
        for incoming, answer in zip(batch, answers, strict=True):
            for out in self.stage.step(self.state, incoming, answer):
                log.append(out.topic, out.key, out.record)
        self.position = end
        for key, value in self.state.drain():
            self.changelog_bytes += len(key) + len(value or b"")
            if value is None:
                self.changelog.pop(key, None)
            else:
                self.changelog[key] = value
        return True

    def restore(self, order: Callable[[list[bytes]], Sequence[bytes]] = sorted) -> None:
        """Throw the state away and read it back from the changelog, rows in any order."""
        self.state = self.stage.new_state()
        for key in order(list(self.changelog)):
            self.state.restore(key, self.changelog[key])


class Flow:
    """A log and the readers of all stages on all its partitions."""

    def __init__(self, stages: Iterable[AnyStage], *, partitions: int = 1, namespace: str = DEFAULT_NAMESPACE) -> None:
        self.log = Log(partitions, namespace)
        stages = list(stages)
        bind_payload(stages, LogPayload(self.log))
        self.readers = [
            Reader(stage, partition, stage.new_state())
            for stage in stages
            for partition in range(len(self.log.of(stage.input)))
        ]

    def publish(self, topic: Topic, key: str, record: Any) -> None:
        """Add a record; a tick or a configuration goes to every partition of the topic."""
        if isinstance(record, Tick | ConfigApplied):
            for partition in range(len(self.log.of(topic))):
                self.log.append(topic, key, record, partition)
        else:
            self.log.append(topic, key, record)

    async def tick(self, tick: Tick) -> None:
        """Let everything so far pass, then the tick, stage after stage."""
        await self.settle()
        for topic in dict.fromkeys(STAGE_INPUTS.values()):
            self.publish(topic, "tick", tick)
            await self.settle()

    async def settle(self, at_most: int | None = None) -> None:
        """Run all stages until nothing is left to read."""
        while True:
            moved = [await reader.run(self.log, at_most) for reader in self.readers]
            if not any(moved):
                return

    def records(self, topic: Topic) -> list[Any]:
        """Return all records of a topic, partition after partition."""
        return self.log.records(topic)

    def rows(self) -> dict[str, int]:
        """Return how many changelog rows each stage has written and not deleted."""
        counts: dict[str, int] = defaultdict(int)
        for reader in self.readers:
            counts[reader.stage.name] += len(reader.changelog)
        return dict(counts)


def by_checksum(key: bytes, partitions: int) -> int:
    """Return a partition as the log in memory picks it; Kafka's clients pick another."""
    return zlib.crc32(key) % partitions
