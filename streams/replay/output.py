"""Where a replay's records go: a partition of its namespace, at an offset that is known before it is written.

Nothing but one replay writes into its namespace, and nothing there is transactional, so the n-th record of a partition
stands at offset n. That is why a score can name the location of a trajectory that is still on its way to the broker.
"""

import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from rollbus.schemas.topics import Topic

Partitioner = Callable[[bytes, int], int]
"""Key and number of partitions to the partition."""


class Output(Protocol):
    """Takes frames in order; may hold them back until `settle`."""

    def append(self, topic: Topic, partition: int, key: bytes | None, frame: bytes) -> int:
        """Take a frame and return the offset that it has."""
        ...

    async def settle(self) -> None:
        """Let go of frames if many wait; called between records."""
        ...

    async def flush(self) -> None:
        """Let go of all frames, and wait until they are there."""
        ...


@dataclass(slots=True)
class CountingOutput:
    """Writes nothing: a dry run."""

    counts: Counter[tuple[str, int]] = field(default_factory=Counter)

    def append(self, topic: Topic, partition: int, key: bytes | None, frame: bytes) -> int:
        """Count the frame."""
        offset = self.counts[topic.name, partition]
        self.counts[topic.name, partition] = offset + 1
        return offset

    async def settle(self) -> None:
        """Do nothing: nothing waits."""

    async def flush(self) -> None:
        """Do nothing: nothing waits."""


@dataclass(slots=True)
class MemoryOutput(CountingOutput):
    """Keeps every frame."""

    frames: dict[tuple[str, int], list[tuple[bytes | None, bytes]]] = field(default_factory=dict)

    def append(self, topic: Topic, partition: int, key: bytes | None, frame: bytes) -> int:
        """Keep the frame."""
        self.frames.setdefault((topic.name, partition), []).append((key, frame))
        return CountingOutput.append(self, topic, partition, key, frame)


def by_checksum(key: bytes, partitions: int) -> int:
    """Return a partition as the log in memory picks it; Kafka's clients pick another."""
    return zlib.crc32(key) % partitions
