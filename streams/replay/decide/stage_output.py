"""A stage's output, on its way from the lane that made it to the process that puts all outputs in order."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, NamedTuple

from rollbus.schemas.codec import decode
from rollbus.schemas.record_makers import maker
from rollbus.schemas.records.trajectories import Location, Score, TurnReward
from rollbus.streams.stages.scoring.answers import ComponentAnswer

_FIELDS = [field.name for field in fields(Score)]
_LOCATION_INDEX = _FIELDS.index("location")
_FIELDS.remove("location")
_TRAJECTORY_ID, _GROUP_HINT = _FIELDS.index("trajectory_id"), _FIELDS.index("group_hint")
_FIRST_SEEN_MS = _FIELDS.index("first_seen_ms")

read_header_fields = attrgetter(*_FIELDS)
"""A score's header → its fields, as a tuple, which reaches another process faster than encoded bytes.

The location is not among them: a record has its place only once everything is in order.
"""

_make_score = maker(Score)


@dataclass(frozen=True, slots=True)
class HeaderOnly:
    """All that scoring must know of a trajectory that another process has decoded."""

    header_fields: tuple[Any, ...]
    """As `read_header_fields` returns them."""
    answers: Mapping[str, ComponentAnswer] | None = None
    """What the reward functions answered about it, by component; None if they have not been asked."""

    @property
    def trajectory_id(self) -> str:
        """The id of the trajectory whose header it is."""
        return str(self.header_fields[_TRAJECTORY_ID])

    @property
    def group_hint(self) -> str:
        """The key of the trajectory's topic."""
        return str(self.header_fields[_GROUP_HINT])

    @property
    def first_seen_ms(self) -> int:
        """Stream time when the first event of its episode came."""
        return int(self.header_fields[_FIRST_SEEN_MS])

    def header(self, location: Location) -> Score:
        """Return the header of the trajectory, which is now at this location."""
        return _make_score(*self.header_fields[:_LOCATION_INDEX], location, *self.header_fields[_LOCATION_INDEX:])


class StageOutput(NamedTuple):
    """One record that a stage wrote."""

    reader_index: int
    """Which of the stages that read the first input has written it."""
    topic: str
    """Without the namespace."""
    key: bytes | None
    data: bytes
    header_fields: tuple[Any, ...] | None = None
    """If it is a trajectory: those of its score, as `read_header_fields` returns them."""
    answers: tuple[tuple[str, float | None, str | None, tuple[TurnReward, ...]], ...] | None = None
    """Of each component: its name, value, error, and the rewards that it gives to single turns."""

    def record(self) -> Any:
        """Return the record as the following stages take it."""
        if self.header_fields is None:
            return decode(self.data)
        if self.answers is None:
            return HeaderOnly(self.header_fields)
        answers = {name: ComponentAnswer(value, error, turns=turns) for name, value, error, turns in self.answers}
        return HeaderOnly(self.header_fields, answers)
