"""How much the recorded episodes say of another version: their weights, and why there is no estimate, if so.

The weights have the mean 1 if the log holds everything that the other version would do. What is missing from the mean
is probability of something that was never recorded: an estimate takes it at its worst and at its best. The effective
sample size is that of Kish (Survey Sampling, 1965): so many episodes of its own would be as certain.

Weights above √n are clipped (Ionides, Journal of Computational and Graphical Statistics 17(2), 2008): what this takes
away is missing from the mean too, and is taken at its worst and at its best like the rest (Bottou et al., JMLR 14,
2013).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import fsum, sqrt

LEAST_EPISODES = 100
LEAST_EFFECTIVE = 50.0
"""With fewer, the mean of weighted rewards is not near enough to normal, and its interval would be too narrow."""
MOST_MISSING = 0.2
"""Share of what the other version would do that may be missing from the log: the interval grows by as much."""
MOST_ABOVE_CHANCE = 4.0
"""Standard errors of the mean weight above 1, after which the log-probs cannot be of these versions."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """What the weights say of themselves."""

    episodes: int
    effective: float
    mean_weight: float
    largest_weight: float
    clip: float
    """Weights were clipped to this."""
    clipped: int
    """How many weights were."""
    missing: float
    """Share of what the other version would do that the log does not show."""
    error: float
    """Standard error of the mean weight: so much may be missing by chance."""
    refusal: str = ""
    """Why there is no estimate; empty if there is one."""


def measure_overlap(weights: Sequence[float]) -> Overlap:
    """Return what can be said; `refusal` names what is too small, and what to do."""
    count = len(weights)
    clip = sqrt(count) if count else 0.0
    total, squares = fsum(weights), fsum(weight * weight for weight in weights)
    mean = total / count if count else 0.0
    effective = total * total / squares if squares else 0.0
    clipped_mean = fsum(min(weight, clip) for weight in weights) / count if count else 0.0
    error = sqrt(max(0.0, squares / count - mean * mean) / count) if count else 0.0
    overlap = Overlap(
        episodes=count,
        effective=effective,
        mean_weight=mean,
        largest_weight=max(weights, default=0.0),
        clip=clip,
        clipped=sum(weight > clip for weight in weights),
        missing=max(0.0, 1.0 - clipped_mean),
        error=error,
    )
    return replace(overlap, refusal=_describe_refusal(overlap))


def _describe_refusal(overlap: Overlap) -> str:
    if overlap.episodes < LEAST_EPISODES:
        return f"{overlap.episodes} episodes are too few, it takes {LEAST_EPISODES}; go further back by --since"
    if overlap.missing > MOST_MISSING:
        return (
            f"the log shows {1 - overlap.missing:.0%} of what the version would do, it takes {1 - MOST_MISSING:.0%}; "
            "nothing recorded says what the rest would earn, only a canary does"
        )
    if overlap.effective < LEAST_EFFECTIVE:
        return (
            f"{overlap.episodes} episodes are worth {overlap.effective:.0f} of the version's own, it takes "
            f"{LEAST_EFFECTIVE:.0f}; take more episodes, or let a canary answer"
        )
    if overlap.mean_weight - 1 > MOST_ABOVE_CHANCE * overlap.error + 0.01:
        return (
            f"the weights have the mean {overlap.mean_weight:.2f} and should have 1: the recorded log-probs are not "
            "those of the distribution that was sampled from, or the server scores another model"
        )
    return ""
