"""What reward an attempt is expected to earn: running means of its example, of openings alike and of its task.

An attempt that comes once has no others to be compared with, so its reward is held against what is expected of it
before it is known (Single-stream Policy Optimization, arXiv 2509.13232, keeps such a value per prompt). Each level is a
mean that forgets as the policy moves: a reward counts less with every version since it was earned. A narrow level that
has seen little leans on the wider one behind it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Breadth = Literal["example", "opening", "task"]

KEEP_PER_VERSION = 0.95
"""What is left of a reward's weight one policy version later: half after 14 versions. The paper's tracker keeps 0.875
to 0.96, by how far the policy moved: 2 ** (-KL / half). Neither the log nor grouping's input has the KL of a step, and
a simulation finds little lost (docs/grouping.md)."""
MOST_WEIGHT = 64.0
"""Rewards that a mean rests on at most, so that it follows the task even while no version is made."""
TRUST = 2.0
"""After so many rewards of its own a level weighs as much as the wider one. For rewards of 0 and 1 whose examples
differ evenly in difficulty, half of the variance is within an example, and 2 is the weight of least error."""


@dataclass(frozen=True, slots=True)
class Level:
    """A running mean of rewards: total / weight."""

    total: float = 0.0
    weight: float = 0.0
    version: int = 0
    """Newest policy version of any reward in it."""
    seen_ms: int = 0
    """Stream time of the last reward."""

    def faded(self, version: int) -> "Level":
        """Return the level as it counts for an attempt by this policy version."""
        if version <= self.version:
            return self
        fade = KEEP_PER_VERSION ** (version - self.version)
        return Level(fade * self.total, fade * self.weight, version, self.seen_ms)

    def add(self, reward: float, version: int, now_ms: int) -> "Level":
        """Return the level with one more reward, of an attempt by this policy version."""
        before = self.faded(version)
        share = KEEP_PER_VERSION ** (before.version - version)
        total, weight = before.total + share * reward, before.weight + share
        bound = min(1.0, MOST_WEIGHT / weight)
        return Level(bound * total, bound * weight, before.version, now_ms)


@dataclass(frozen=True, slots=True)
class Expectation:
    """The reward that an attempt is expected to earn."""

    value: float
    breadth: Breadth
    """The narrowest level that has more to say than the wider ones behind it."""


def expectation(levels: Iterable[tuple[Breadth, Sequence[Level]]], version: int) -> Expectation | None:
    """Return what an attempt by this policy version is expected to earn; None if no reward is known.

    The widest level comes first. Several means of one breadth count as their mean.
    """
    best: Expectation | None = None
    for breadth, parts in levels:
        level = _mean_of([part.faded(version) for part in parts])
        if not level.weight:
            continue
        if best is None:
            best = Expectation(level.total / level.weight, breadth)
        else:
            value = (level.total + TRUST * best.value) / (level.weight + TRUST)
            best = Expectation(value, breadth if level.weight >= TRUST else best.breadth)
    return best


def _mean_of(parts: Sequence[Level]) -> Level:
    if not parts:
        return Level()
    return Level(sum(part.total for part in parts) / len(parts), sum(part.weight for part in parts) / len(parts))
