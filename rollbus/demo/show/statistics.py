"""Counts of games → rates with intervals. Pure; every interval is at 95 % and names its formula.

One rate: Wilson's score interval. Difference of two rates: Newcombe's hybrid of two Wilson intervals
(Newcombe 1998, method 10), which never leaves [−1, 1]. Both are the trainer's own (`trainer/evaluation`), and treat the
games as independent; two evaluations that play the same openings and opponents are, if anything, a little more certain
than stated.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass

from rollbus.demo.game.game import Result
from rollbus.trainer.validation import evaluation

FORMULAS = "rates: Wilson 95 %; difference: Newcombe 95 % (method 10)"


@dataclass(frozen=True, slots=True)
class Interval:
    low: float
    value: float
    high: float

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

    def count(self, result: Result) -> int:
        counts = {
            Result.WIN: self.wins,
            Result.DRAW: self.draws,
            Result.LOSS: self.losses,
            Result.ILLEGAL: self.illegal,
        }
        return counts[result]

    def rate(self, result: Result) -> Interval:
        return wilson(self.count(result), self.games)


def wilson(successes: int, games: int) -> Interval:
    """Wilson's score interval; without games everything is possible."""
    return Interval(*evaluation.wilson_interval(successes, games)) if games else Interval(0.0, 0.0, 1.0)


def difference(after: Interval, before: Interval) -> Interval:
    """after − before, from the Wilson interval of each (Newcombe's method 10)."""
    return Interval(*evaluation.difference_interval(astuple(after), astuple(before)))


def mean_interval(values: Sequence[float]) -> Interval:
    """Mean ± 1.96 standard errors: the band around rewards of one policy version."""
    return Interval(*evaluation.mean_interval(values)) if values else Interval(0.0, 0.0, 0.0)
