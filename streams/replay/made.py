"""What a stage made, on its way from the process that made it to the one that puts everything in order."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from rollbus.schemas.codec import decode
from rollbus.schemas.trajectories import Score
from rollbus.streams.scoring_answers import Answer


@dataclass(frozen=True, slots=True)
class Headed:
    """All that scoring must know of a trajectory that was decoded elsewhere."""

    header: Score
    """Its location is blank: it has none before it is put in order."""
    answers: Mapping[str, Answer] | None = None
    """What the reward functions said of it, where they were asked already."""

    @property
    def trajectory_id(self) -> str:
        """Whose header it is."""
        return self.header.trajectory_id

    @property
    def group_hint(self) -> str:
        """The key of the trajectory's topic."""
        return self.header.group_hint


class Made(NamedTuple):
    """One output."""

    reader: int
    """Which of the first input's stages made it."""
    topic: str
    key: bytes | None
    data: bytes
    head: bytes | None = None
    """Of a trajectory: the score's header, encoded."""
    answers: tuple[tuple[str, float | None, str | None], ...] | None = None
    """Component, value and error."""

    def record(self) -> Any:
        """Return what the following stages are given."""
        if self.head is None:
            return decode(self.data)
        told = self.answers
        answers = None if told is None else {name: Answer(value, error) for name, value, error in told}
        return Headed(decode(self.head), answers)
