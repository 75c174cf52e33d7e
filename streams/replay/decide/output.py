"""Where a replay's records go: a partition of its namespace, at an offset that is known before it is written.

Nothing but one replay writes into its namespace, and nothing there is transactional, so the n-th record of a partition
has offset n. That is why a score can name the location of a trajectory that is still on its way to the broker.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rollbus.schemas.records.trajectories import Location, Trajectory
from rollbus.schemas.topics import Topic
from rollbus.streams.state.payload import Payload

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


@dataclass(frozen=True, slots=True)
class WrittenPayload:
    """What the topics hold, once all that the replay has given an offset is there too.

    It returns no forgotten episode: a group that had closed names its members by location alone.
    """

    output: Output
    topics: Payload
    excluded: frozenset[str] = frozenset()
    """Episodes on the list of exclusions."""

    async def fetch(self, locations: Collection[Location]) -> Mapping[Location, Trajectory]:
        """Return those that are there and not forgotten; raises UnavailableError."""
        await self.output.flush()
        trajectories = await self.topics.fetch(locations)
        return {
            at: trajectory for at, trajectory in trajectories.items() if not is_forgotten(trajectory, self.excluded)
        }


def is_forgotten(record: Any, episodes: frozenset[str]) -> bool:
    """Whether a record says that it is of one of these episodes, or of one below them."""
    ids = getattr(record, "episode_id", None), getattr(record, "root_episode_id", None)
    return not episodes.isdisjoint(ids)
