"""Locations become the trajectories at them, for a stage that asks a judge about their text.

A record at a location never changes, so reading it always gives the same; but retention may remove it, and then the
stage writes down that it is lost.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from rollbus.schemas.records.trajectories import Location, Trajectory


class Payload(Protocol):
    """Fetches trajectories."""

    async def fetch(self, locations: Collection[Location]) -> Mapping[Location, Trajectory]:
        """Return those that still exist; raises UnavailableError if the broker does not answer."""
        ...


@runtime_checkable
class NeedsPayload(Protocol):
    """A stage that needs the trajectories at the locations in its input."""

    def bind(self, payload: Payload) -> None:
        """Set where trajectories are fetched."""
        ...


def bind_payload(stages: Iterable[Any], payload: Payload) -> bool:
    """Give the payload to the stages that need it; return whether any does."""
    needing = [stage for stage in stages if isinstance(stage, NeedsPayload)]
    for stage in needing:
        stage.bind(payload)
    return bool(needing)
