"""Trajectories by location, for whoever asks about groups anew: some of them the replay itself has only just made."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from rollbus.schemas.trajectories import Location, Trajectory
from rollbus.streams.payload import Payload
from rollbus.streams.replay.output import Output


@dataclass(frozen=True, slots=True)
class WrittenPayload:
    """What stands in topics, once all that the replay has told a location of stands there too."""

    output: Output
    topics: Payload

    async def fetch(self, locations: Collection[Location]) -> Mapping[Location, Trajectory]:
        """Return those that are there; raises UnavailableError."""
        await self.output.flush()
        return await self.topics.fetch(locations)
