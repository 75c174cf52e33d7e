"""All stages over a log in memory: the same pure steps as live, without Kafka and Faust.

Records go through in rounds: all records before a tick pass through every stage before the tick does, so one order of
publishing gives one output.
"""

import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rollbus.schemas.codec import encode
from rollbus.schemas.namespaces import DEFAULT_NAMESPACE
from rollbus.schemas.records.control import ConfigApplied, Tick
from rollbus.schemas.records.trajectories import Location, Trajectory
from rollbus.schemas.topics import STAGE_INPUTS, Topic
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
        payload_by_location = {}
        for location in locations:
            partitions = self.log.topics.get(location.topic.removeprefix(self.log.namespace), [])
            records = partitions[location.partition] if location.partition < len(partitions) else []
            if location.offset < len(records) and isinstance(records[location.offset].record, Trajectory):
                payload_by_location[location] = records[location.offset].record
        return payload_by_location


@dataclass(slots=True)
class Reader:
    """One stage on one partition: its state, its position, and the rows that it has written to its changelog."""

    stage: AnyStage
    partition: int
    state: Any
    position: int = 0
    changelog: dict[bytes, bytes] = field(default_factory=dict)
    changelog_bytes: int = 0

    async def run(self, log: Log) -> bool:
        """Process one batch; return False if there was nothing to read."""
        batch = log.of(self.stage.input)[self.partition][self.position :]
        if not batch:
            return False
        answers = await self.stage.answer(self.state, batch)
        for incoming, answer in zip(batch, answers, strict=True):
            for out in self.stage.step(self.state, incoming, answer):
                log.append(out.topic, out.key, out.record)
        self.position += len(batch)
        for key, value in self.state.drain():
            self.changelog_bytes += len(key) + len(value or b"")
            if value is None:
                self.changelog.pop(key, None)
            else:
                self.changelog[key] = value
        return True


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

    async def settle(self) -> None:
        """Run all stages until nothing is left to read."""
        while True:
            moved = [await reader.run(self.log) for reader in self.readers]
            if not any(moved):
                return

    def records(self, topic: Topic) -> list[Any]:
        """Return all records of a topic, partition after partition."""
        return self.log.records(topic)


def by_checksum(key: bytes, partitions: int) -> int:
    """Return a partition as the log in memory picks it; Kafka's clients pick another."""
    return zlib.crc32(key) % partitions
