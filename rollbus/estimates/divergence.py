"""How far a version has moved from another one, such as the base model: the KL divergence per sampled token.

It is a mean over what the version itself would sample, and the episodes are others' own: so they are weighted as in
`estimators`, self-normalised. Each token counts log p(version) − log p(other); Schulman's k1, without bias.

What the log does not show of a version has no bound here: a phrase that neither the log nor the other version knows may
be any distance away. So where more is missing than chance explains, there is no estimate. Where chance may explain it,
the interval is widened: the missing part is taken at no distance below, and at that of the log's furthest answer above.
There a standard error of the mean weight counts as missing, too.
"""

from collections.abc import Sequence
from math import fsum, sqrt

from rollbus.estimates.estimators import Interval
from rollbus.estimates.overlap import Overlap
from rollbus.trainer.validation.evaluation import Z_95

MOST_BELOW_CHANCE = 3.0
"""Standard errors of the mean weight below 1, after which the rest of what the version would do is not in the log."""


def refuse_divergence(overlap: Overlap) -> str:
    """Return why the log does not say how far a version has moved; empty if it does."""
    if overlap.refusal or overlap.missing <= MOST_BELOW_CHANCE * overlap.error + 0.01:
        return overlap.refusal
    return (
        f"the log shows {1 - overlap.missing:.0%} of what the version would do, and the rest may be at any distance; "
        "let a canary answer, and measure the guard `surprisal`"
    )


def estimate_divergence(
    weights: Sequence[float],
    log_ratios: Sequence[float],
    tokens: Sequence[int],
    *,
    overlap: Overlap,
) -> Interval:
    """Return nats per token; of each episode its weight, the log-ratio of all its tokens, and how many they are.

    Each error is divided by how much the estimate would lack without its episode (HC3: MacKinnon and White, Journal of
    Econometrics 29, 1985).
    """
    clipped = [min(weight, overlap.clip) for weight in weights]
    parts = [weight * number for weight, number in zip(clipped, tokens, strict=True)]
    count = fsum(parts)
    value = fsum(weight * ratio for weight, ratio in zip(clipped, log_ratios, strict=True)) / count
    errors = [
        (weight * ratio - value * part) / max(count - part, count / len(parts))
        for weight, ratio, part in zip(clipped, log_ratios, parts, strict=True)
    ]
    half = Z_95 * sqrt(fsum(error * error for error in errors))
    furthest = max(ratio / number for ratio, number in zip(log_ratios, tokens, strict=True))
    below = overlap.missing * max(0.0, value)
    above = (overlap.missing + overlap.error) * max(0.0, furthest - value)
    return Interval(value, value - half - below, value + half + above)
