"""Two evaluations of the same things, before and after, with 95 % intervals."""

from dataclasses import dataclass
from typing import NamedTuple

from rollbus.schemas.records.steps import Evaluation
from rollbus.trainer.validation.evaluation import difference, interval_of

FORMULAS = "rates: Wilson 95 %; difference: Newcombe 95 % (method 10)"


class ConfidenceInterval(NamedTuple):
    """A value and the bounds of its 95 % interval."""

    low: float
    value: float
    high: float

    def percent(self) -> str:
        return f"{100 * self.value:.1f} % [{100 * self.low:.1f}, {100 * self.high:.1f}]"


@dataclass(frozen=True, slots=True)
class BeforeAndAfter:
    """The same episodes, before and after."""

    before: Evaluation
    after: Evaluation
    success: str
    """The metric that says whether it learned."""

    @property
    def gain(self) -> ConfidenceInterval:
        return ConfidenceInterval(*difference(self.after, self.before, self.success))

    @property
    def is_real(self) -> bool:
        """Whether the interval of the difference lies above zero."""
        return self.gain.low > 0

    def rates(self) -> tuple[ConfidenceInterval, ConfidenceInterval]:
        """Return the share of successes before and after."""
        return rate_of(self.before, self.success), rate_of(self.after, self.success)


def rate_of(evaluation: Evaluation, outcome: str) -> ConfidenceInterval:
    """Return the share of episodes that ended so."""
    return ConfidenceInterval(*interval_of(evaluation, outcome))
