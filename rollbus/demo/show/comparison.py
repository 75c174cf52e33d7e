"""Two evaluations of the same things, before and after, with 95 % intervals."""

from dataclasses import dataclass
from typing import NamedTuple

from rollbus.schemas.records.steps import Evaluation
from rollbus.trainer.validation.evaluation import difference, interval_of

FORMULAS = "rates: Wilson 95 %; difference: Newcombe 95 % (method 10)"
"""How `trainer/validation/evaluation.py` computes the intervals, for the reader of a result."""


class ConfidenceInterval(NamedTuple):
    """A value and the bounds of its 95 % interval."""

    low: float
    value: float
    high: float

    def percent(self) -> str:
        """Return the text for people, in percent."""
        return f"{100 * self.value:.1f} % [{100 * self.low:.1f}, {100 * self.high:.1f}]"


@dataclass(frozen=True, slots=True)
class BeforeAndAfter:
    """The evaluations of the base model and of the last version, on the same tasks."""

    before: Evaluation
    after: Evaluation
    success: str
    """Name of the outcome whose share says whether it learned."""

    @property
    def gain(self) -> ConfidenceInterval:
        """Share of successes after, less that before."""
        return ConfidenceInterval(*difference(self.after, self.before, self.success))

    @property
    def is_above_zero(self) -> bool:
        """Whether the interval of the difference lies above zero."""
        return self.gain.low > 0

    def rates(self) -> tuple[ConfidenceInterval, ConfidenceInterval]:
        """Return the share of successes before and after."""
        return rate_of(self.before, self.success), rate_of(self.after, self.success)


def rate_of(evaluation: Evaluation, outcome: str) -> ConfidenceInterval:
    """Return the share of episodes with an outcome."""
    return ConfidenceInterval(*interval_of(evaluation, outcome))
