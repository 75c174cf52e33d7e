"""A version's evaluations → whether it may become the canary: passed, worse, or why nothing can be said.

An evaluation is a measurement of a version from outside its traffic: a held-out set, an estimate from recorded
episodes, how far it is from the base model. It is compared with a limit, or with the same evaluation of the version
that serves, and that only if both are of the same set. "Worse" means certainly worse: the whole interval lies beyond.
A measurement that is not a number is refused.
An interval of a difference is that of Newcombe's method 10 (Statistics in Medicine 17, 1998).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import hypot, inf, isnan
from typing import Literal

from rollbus.streams.stages.delivery.evidence.verdict import Goal

Finding = Literal["passed", "worse", "missing", "refused", "set_changed"]
REFUSED = "refused"
"""The metric of an evaluation that says: it was tried, and nothing can be said."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One evaluation of one version."""

    set_hash: str
    metrics: Mapping[str, float]
    evaluated_at_ms: int

    def interval(self, metric: str) -> tuple[float, float, float]:
        """Return low, value and high; a metric without bounds is taken as exact."""
        value = self.metrics[metric]
        return self.metrics.get(f"{metric}_low", value), value, self.metrics.get(f"{metric}_high", value)


@dataclass(frozen=True, slots=True)
class Checked:
    """What one check found, with the interval that it was found on."""

    finding: Finding
    low: float = -inf
    value: float = 0.0
    high: float = inf

    @property
    def is_known(self) -> bool:
        """Whether there are numbers."""
        return self.finding in ("passed", "worse")


def check_limit(version: Measured | None, metric: str, *, goal: Goal, limit: float) -> Checked:
    """Compare a version's metric with a limit."""
    if (nothing := _nothing_known(version, metric)) is not None or version is None:
        return Checked(nothing or "missing")
    return _judge(*version.interval(metric), goal=goal, limit=limit)


def check_against(
    version: Measured | None, serving: Measured | None, metric: str, *, goal: Goal, tolerance: float
) -> Checked:
    """Compare a version with the one that serves, by the same evaluation of the same set."""
    for measured in (version, serving):
        if (nothing := _nothing_known(measured, metric)) is not None:
            return Checked(nothing)
    if version is None or serving is None:
        return Checked("missing")
    if version.set_hash != serving.set_hash:
        return Checked("set_changed")
    (low, value, high), (low_of, value_of, high_of) = version.interval(metric), serving.interval(metric)
    difference = value - value_of
    return _judge(
        difference - hypot(value - low, high_of - value_of),
        difference,
        difference + hypot(high - value, value_of - low_of),
        goal=goal,
        limit=-tolerance if goal == "more" else tolerance,
    )


def _nothing_known(measured: Measured | None, metric: str) -> Finding | None:
    if measured is None:
        return "missing"
    if metric in measured.metrics:
        return None
    return "refused" if measured.metrics.get(REFUSED) else "missing"


def _judge(low: float, value: float, high: float, *, goal: Goal, limit: float) -> Checked:
    if isnan(low) or isnan(value) or isnan(high):  # of a broken version, and worse than nothing
        return Checked("refused")
    is_worse = high < limit if goal == "more" else low > limit
    return Checked("worse" if is_worse else "passed", low, value, high)
