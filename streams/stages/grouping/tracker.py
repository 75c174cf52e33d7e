"""What reward an attempt is expected to earn: a running mean per example and per task, from narrow to wide.

An attempt that comes once has no others to be compared with, so its reward is held against what is expected of it
before it is known (Single-stream Policy Optimization, arXiv 2509.13232, keeps such a value per prompt). Each level is a
mean that forgets as the policy moves: a reward counts less with every version since it was earned. A narrow level that
has seen little leans on the wider one behind it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Breadth = Literal["example", "task"]

KEEP_PER_VERSION = 0.95
"""What is left of a reward's weight one policy version later: half after 14 versions. The paper's tracker keeps 0.875
to 0.96, by how far the policy moved; the KL of a step is not in grouping's input, its version is."""
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

    def add(self, reward: float, version: int, now_ms: int) -> "Level":
        """Return the level with one more reward, of an attempt by this policy version."""
        newest = max(self.version, version)
        fade, share = KEEP_PER_VERSION ** (newest - self.version), KEEP_PER_VERSION ** (newest - version)
        total, weight = fade * self.total + share * reward, fade * self.weight + share
        bound = min(1.0, MOST_WEIGHT / weight)
        return Level(bound * total, bound * weight, newest, now_ms)


@dataclass(frozen=True, slots=True)
class Expectation:
    """The reward that an attempt is expected to earn."""

    value: float
    breadth: Breadth
    """The narrowest level that has more to say than the wider ones behind it."""


def expectation(levels: Iterable[tuple[Breadth, Level]]) -> Expectation | None:
    """Return what follows from the levels, the widest first; None if no reward is known."""
    best: Expectation | None = None
    for breadth, level in levels:
        if not level.weight:
            continue
        if best is None:
            best = Expectation(level.total / level.weight, breadth)
        else:
            value = (level.total + TRUST * best.value) / (level.weight + TRUST)
            best = Expectation(value, breadth if level.weight >= TRUST else best.breadth)
    return best
