"""A policy version measured on held-out tasks → an `Evaluation` record; two of them → how much one is better.

Pure. The id names what was measured, so measuring again replaces it. All intervals are at 95 %: Wilson's for shares,
the normal approximation for means, and for a difference Newcombe's method 10 (1998), which adds the squares of the two
intervals and takes the episodes as independent.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist, fmean, stdev

from rollbus.schemas.errors import InvalidRecordError
from rollbus.schemas.ids import stable_id
from rollbus.schemas.numbers import LARGEST, computable
from rollbus.schemas.records.steps import Evaluation

Z_95 = NormalDist().inv_cdf(0.975)
"""Half the width of a 95 % interval, in standard errors."""


def build_evaluation(
    samples: Mapping[str, Sequence[float]],
    *,
    model: str,
    policy_version: int,
    name: str,
    now_ms: int,
    run_id: str | None = None,
    seed: int | None = None,
    set_hash: str | None = None,
) -> Evaluation:
    """Return the record of samples by metric, one value per episode; values 0 and 1 are shares (Wilson).

    A mean of one episode has no interval.
    """
    lengths = {len(values) for values in samples.values()}
    if len(lengths) != 1 or 0 in lengths:
        raise InvalidRecordError(
            f"evaluation {name!r} of {model}@{policy_version}: every metric needs one value per episode, got "
            f"{ {metric: len(values) for metric, values in samples.items()} }"
        )
    if taken_names := [name for metric in samples for name in (f"{metric}_low", f"{metric}_high") if name in samples]:
        raise InvalidRecordError(
            f"evaluation {name!r} of {model}@{policy_version}: metric {taken_names[0]!r} has the name of a bound of "
            "another's interval; give it another name"
        )
    metrics: dict[str, float] = {}
    for metric, values in samples.items():
        if wrong := [value for value in values if not computable(value)]:
            raise InvalidRecordError(
                f"evaluation {name!r} of {model}@{policy_version}: metric {metric!r} is {wrong[0]!r}; it must be a "
                f"number of at most {LARGEST:g}"
            )
        is_share = set(values) <= {0, 1}
        if len(values) == 1 and not is_share:
            metrics[metric] = values[0]
            continue
        low, middle, high = share_interval(values) if is_share else mean_interval(values)
        metrics |= {metric: middle, f"{metric}_low": low, f"{metric}_high": high}
    return Evaluation(
        evaluation_id=stable_id(
            "evaluation", model, policy_version, run_id or "", name, seed, *filter(None, [set_hash])
        ),
        model=model,
        policy_version=policy_version,
        run_id=run_id,
        name=name,
        episodes=lengths.pop(),
        metrics=metrics,
        seed=seed,
        set_hash=set_hash,
        evaluated_at_ms=now_ms,
    )


def share_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return low, share and high of values 0 and 1."""
    return wilson_interval(round(math.fsum(values)), len(values))


def wilson_interval(successes: int, n: int) -> tuple[float, float, float]:
    """Return low, share and high by Wilson's score interval (95 %), which holds near 0 and 1 too."""
    share = successes / n
    centre = (share + Z_95**2 / (2 * n)) / (1 + Z_95**2 / n)
    half = Z_95 / (1 + Z_95**2 / n) * math.sqrt(share * (1 - share) / n + Z_95**2 / (4 * n * n))
    # At 0 and at 1 the bound is exact; rounding must not move it.
    return max(0.0, centre - half) if successes else 0.0, share, centre + half if successes < n else 1.0


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return low, mean and high by the normal approximation (95 %); one value alone has no width."""
    mean = fmean(values)
    half = Z_95 * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return mean - half, mean, mean + half


def interval_of(evaluation: Evaluation, metric: str) -> tuple[float, float, float]:
    """Return low, value and high of a metric; infinite bounds without a recorded interval."""
    metrics = evaluation.metrics
    return metrics.get(f"{metric}_low", -math.inf), metrics[metric], metrics.get(f"{metric}_high", math.inf)


def difference(after: Evaluation, before: Evaluation, metric: str) -> tuple[float, float, float]:
    """Return low, value and high of after − before."""
    return difference_interval(interval_of(after, metric), interval_of(before, metric))


def difference_interval(
    after: tuple[float, float, float], before: tuple[float, float, float]
) -> tuple[float, float, float]:
    """Return low, value and high of after − before, from low, value and high of each."""
    (low_a, a, high_a), (low_b, b, high_b) = after, before
    return a - b - math.hypot(a - low_a, high_b - b), a - b, a - b + math.hypot(high_a - a, b - low_b)
