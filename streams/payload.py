"""Locations to the trajectories that stand there: what a stage needs that asks somebody about their text.

What is written at a location never changes, so to read it is no effect that could come out otherwise; only whether
retention has removed it can, and then its absence is written down.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from rollbus.schemas.trajectories import Location, Trajectory


class Payload(Protocol):
    """Where trajectories are fetched from."""

    async def fetch(self, locations: Collection[Location]) -> Mapping[Location, Trajectory]:
        """Return those that are still there; raises UnavailableError where nobody can say."""
        ...


@runtime_checkable
class NeedsPayload(Protocol):
    """A stage that asks about the trajectories of its input's locations."""

    def bind(self, payload: Payload) -> None:
        """Fetch from there from now on."""
        ...


def bind_payload(stages: Iterable[Any], payload: Payload) -> bool:
    """Give the payload to the stages that need one; say whether any does."""
    needing = [stage for stage in stages if isinstance(stage, NeedsPayload)]
    for stage in needing:
        stage.bind(payload)
    return bool(needing)
