"""One recorded episode as an estimate sees it: what it earned, and how much likelier another version would do the same.

Tools and users answer both versions alike, so their part in the probability of an episode cancels: the weight of an
episode is the product of the ratios of its sampled tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, fsum

LARGEST_LOG_WEIGHT = 50.0
"""A weight of more is as good as infinite; its exponential must not overflow."""


@dataclass(frozen=True, slots=True)
class Step:
    """One turn."""

    log_ratio: float
    """Log-prob of its sampled tokens under the other version − their log-prob as recorded."""
    reward: float = 0.0
    """What it earned; an episode's reward belongs to its last turn."""


@dataclass(frozen=True, slots=True)
class WeightedEpisode:
    """One episode."""

    episode_id: str
    task: str
    opening: str
    """Names the prompt: episodes with the same one were posed the same problem."""
    steps: tuple[Step, ...]
    answer: str = ""
    """Names what was sampled, of an episode with one turn; empty if it had more."""
    answer_probability: float = 0.0
    """Of this answer under the other version."""

    @property
    def reward(self) -> float:
        """The sum over its turns."""
        return fsum(step.reward for step in self.steps)

    @property
    def weight(self) -> float:
        """How much likelier the other version would have done all of it."""
        return weight_of(fsum(step.log_ratio for step in self.steps))


def weight_of(log_ratio: float) -> float:
    """Return the ratio."""
    return exp(min(log_ratio, LARGEST_LOG_WEIGHT))


def cumulative_weights(steps: Sequence[Step]) -> list[float]:
    """Return for each turn how much likelier the other version would have come through it."""
    weights, total = [], 0.0
    for step in steps:
        total += step.log_ratio
        weights.append(weight_of(total))
    return weights
