"""Trajectories by location, for whoever asks about groups anew: some of them the replay itself has only just made."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from rollbus.schemas.trajectories import Location, Trajectory
from rollbus.streams.payload import Payload
from rollbus.streams.replay.left_out import is_forgotten
from rollbus.streams.replay.output import Output


@dataclass(frozen=True, slots=True)
class WrittenPayload:
    """What stands in topics, once all that the replay has told a location of stands there too.

    Forgotten episodes are lost to whoever asks: a group that had closed names its members by location alone.
    """

    output: Output
    topics: Payload
    excluded: frozenset[str] = frozenset()
    """Episodes on the list of exclusions."""

    async def fetch(self, locations: Collection[Location]) -> Mapping[Location, Trajectory]:
        """Return those that are there and not forgotten; raises UnavailableError."""
        await self.output.flush()
        found = await self.topics.fetch(locations)
        return {at: each for at, each in found.items() if not is_forgotten(each, self.excluded)}
