"""A stage's output, on its way from the lane that made it to the process that puts all outputs in order."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, NamedTuple

from rollbus.schemas.codec import decode
from rollbus.schemas.record_makers import maker
from rollbus.schemas.records.trajectories import Location, Score, TurnReward
from rollbus.streams.stages.scoring.answers import ComponentAnswer

_NAMES = [field.name for field in fields(Score)]
_LOCATION_INDEX = _NAMES.index("location")
_NAMES.remove("location")
_TRAJECTORY_ID, _GROUP_HINT = _NAMES.index("trajectory_id"), _NAMES.index("group_hint")
_FIRST_SEEN_MS = _NAMES.index("first_seen_ms")

header_fields = attrgetter(*_NAMES)
"""A header → its fields, as a tuple, which reaches another process faster than encoded bytes.

The location is not among them: a record has its place only once everything is in order.
"""

_make_score = maker(Score)


@dataclass(frozen=True, slots=True)
class HeaderOnly:
    """All that scoring must know of a trajectory that was decoded elsewhere."""

    head: tuple[Any, ...]
    """As by `header_fields`."""
    answers: Mapping[str, ComponentAnswer] | None = None
    """What the reward functions said of it, by component; None where they are still to be asked."""

    @property
    def trajectory_id(self) -> str:
        """Whose header it is."""
        return str(self.head[_TRAJECTORY_ID])

    @property
    def group_hint(self) -> str:
        """The key of the trajectory's topic."""
        return str(self.head[_GROUP_HINT])

    @property
    def first_seen_ms(self) -> int:
        """Stream time when the first event of its episode came."""
        return int(self.head[_FIRST_SEEN_MS])

    def header(self, location: Location) -> Score:
        """Return the header of the trajectory at a location."""
        return _make_score(*self.head[:_LOCATION_INDEX], location, *self.head[_LOCATION_INDEX:])


class StageOutput(NamedTuple):
    """One record that a stage wrote."""

    reader: int
    """Index of the stage among those that read the first input."""
    topic: str
    """Without the namespace."""
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
