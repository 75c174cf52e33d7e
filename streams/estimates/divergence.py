"""How far a version has moved from another one, such as the base model: the KL divergence per sampled token.

It is a mean over what the version itself would sample, and the episodes are others' own: so they are weighted as in
`estimators`, self-normalised. Each token counts log p(version) − log p(other); Schulman's k1, without bias.
"""

from collections.abc import Sequence
from math import fsum, sqrt
from statistics import NormalDist

from rollbus.streams.estimates.estimators import Interval


def estimate_divergence(
    weights: Sequence[float], log_ratios: Sequence[float], tokens: Sequence[int], *, confidence: float = 0.95
) -> Interval:
    """Return nats per token; of each episode its weight, the log-ratio of all its tokens, and how many they are."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    count = fsum(weight * number for weight, number in zip(weights, tokens, strict=True))
    value = fsum(weight * ratio for weight, ratio in zip(weights, log_ratios, strict=True)) / count
    errors = [
        weight * (ratio - value * number) / count
        for weight, ratio, number in zip(weights, log_ratios, tokens, strict=True)
    ]
    half = z * sqrt(fsum(error * error for error in errors))
    return Interval(value, value - half, value + half)
