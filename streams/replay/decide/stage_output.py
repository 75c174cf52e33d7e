"""What a stage made, on its way from the process that made it to the one that puts everything in order."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, NamedTuple

from rollbus.schemas.codec import decode
from rollbus.schemas.record_makers import maker
from rollbus.schemas.records.trajectories import Location, Score, TurnReward
from rollbus.streams.stages.scoring.answers import ComponentAnswer

_NAMES = [field.name for field in fields(Score)]
_PLACE = _NAMES.index("location")
_NAMES.remove("location")
_TRAJECTORY_ID, _GROUP_HINT = _NAMES.index("trajectory_id"), _NAMES.index("group_hint")

header_fields = attrgetter(*_NAMES)
"""A header to its fields without the location, which it has not before everything is in order; bytes take longer."""

_score = maker(Score)


@dataclass(frozen=True, slots=True)
class HeaderOnly:
    """All that scoring must know of a trajectory that was decoded elsewhere."""

    head: tuple[Any, ...]
    """As by `header_fields`."""
    answers: Mapping[str, ComponentAnswer] | None = None
    """What the reward functions said of it, where they were asked already."""

    @property
    def trajectory_id(self) -> str:
        """Whose header it is."""
        return str(self.head[_TRAJECTORY_ID])

    @property
    def group_hint(self) -> str:
        """The key of the trajectory's topic."""
        return str(self.head[_GROUP_HINT])

    def header(self, location: Location) -> Score:
        """Return the header of the trajectory at a location."""
        return _score(*self.head[:_PLACE], location, *self.head[_PLACE:])


class StageOutput(NamedTuple):
    """One output."""

    reader: int
    """Which of the first input's stages made it."""
    topic: str
    key: bytes | None
    data: bytes
    head: tuple[Any, ...] | None = None
    """Of a trajectory: the score's header, as by `header_fields`."""
    answers: tuple[tuple[str, float | None, str | None, tuple[TurnReward, ...]], ...] | None = None
    """Component, value, error and what it says of single turns."""

    def record(self) -> Any:
        """Return what the following stages are given."""
        if self.head is None:
            return decode(self.data)
        if self.answers is None:
            return HeaderOnly(self.head)
        answers = {name: ComponentAnswer(value, error, turns=turns) for name, value, error, turns in self.answers}
        return HeaderOnly(self.head, answers)
