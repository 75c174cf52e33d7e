"""Counts of games → rates with intervals. Pure; every interval is at 95 % and names its formula.

One rate: Wilson's score interval. Difference of two rates: Newcombe's hybrid of two Wilson intervals
(Newcombe 1998, method 10), which never leaves [−1, 1]. Both treat the games as independent; two evaluations
that play the same openings and opponents are, if anything, a little more certain than stated.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt

from rollbus.demo.game import Result

Z95 = 1.959963984540054
"""Quantile of the standard normal distribution at 0.975."""
FORMULAS = "rates: Wilson 95 %; difference: Newcombe 95 % (method 10)"


@dataclass(frozen=True, slots=True)
class Interval:
    low: float
    value: float
    high: float

    def excludes(self, value: float) -> bool:
        return not self.low <= value <= self.high

    def percent(self) -> str:
        return f"{100 * self.value:.1f} % [{100 * self.low:.1f}, {100 * self.high:.1f}]"


@dataclass(frozen=True, slots=True)
class Tally:
    """How many games ended how."""

    wins: int = 0
    draws: int = 0
    losses: int = 0
    illegal: int = 0

    @classmethod
    def of(cls, results: Iterable[Result]) -> "Tally":
        counts = Counter(results)
        return cls(counts[Result.WIN], counts[Result.DRAW], counts[Result.LOSS], counts[Result.ILLEGAL])

    @property
    def games(self) -> int:
        return self.wins + self.draws + self.losses + self.illegal

    def rate(self, result: Result) -> Interval:
        counts = {
            Result.WIN: self.wins,
            Result.DRAW: self.draws,
            Result.LOSS: self.losses,
            Result.ILLEGAL: self.illegal,
        }
        return wilson(counts[result], self.games)


def wilson(successes: int, games: int) -> Interval:
    """Wilson's score interval; without games everything is possible."""
    if games == 0:
        return Interval(0.0, 0.0, 1.0)
    share, z2 = successes / games, Z95**2
    centre = (share + z2 / (2 * games)) / (1 + z2 / games)
    half = Z95 / (1 + z2 / games) * sqrt(share * (1 - share) / games + z2 / (4 * games**2))
    # At 0 and at 1 the bound is exact; rounding must not leave it a hair inside or outside.
    return Interval(max(0.0, centre - half) if successes else 0.0, share, centre + half if successes < games else 1.0)


def difference(after: Interval, before: Interval) -> Interval:
    """after − before, from the Wilson interval of each (Newcombe's method 10)."""
    value = after.value - before.value
    low = value - sqrt((after.value - after.low) ** 2 + (before.high - before.value) ** 2)
    high = value + sqrt((after.high - after.value) ** 2 + (before.value - before.low) ** 2)
    return Interval(low, value, high)


def mean_interval(values: Sequence[float]) -> Interval:
    """Mean ± 1.96 standard errors: the band around rewards of one policy version."""
    count = len(values)
    if count == 0:
        return Interval(0.0, 0.0, 0.0)
    mean = sum(values) / count
    variance = sum((value - mean) ** 2 for value in values) / (count - 1) if count > 1 else 0.0
    half = Z95 * sqrt(variance / count)
    return Interval(mean - half, mean, mean + half)
