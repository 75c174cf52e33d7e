"""What another version would have earned: five estimates of the same number, each with its interval.

    log             what was earned, by the versions that answered
    ips             mean of weight × reward (Horvitz and Thompson, JASA 47, 1952)
    self_normalised the same, divided by the mean weight (Swaminathan and Joachims, NeurIPS 2015)
    per_decision    each turn's reward by the weight of the turns up to it (Precup, Sutton, Singh, ICML 2000)
    doubly_robust   what a fitted model expects, corrected by weighted errors (Dudík, Langford, Li, ICML 2011), which
                    are self-normalised (Thomas and Brunskill, ICML 2016)

Rewards are brought to [0, 1]. An interval is the normal one of the estimate's own terms, widened by what the log does
not show (`overlap.missing`), taken at its worst below and at its best above. Every estimate is also given as its
difference from what the log earned: both are of the same episodes, so the difference is more certain than either.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, sqrt
from statistics import NormalDist

from rollbus.streams.estimates.expected import Expected, predict_rewards
from rollbus.streams.estimates.logged import Logged, Step, cumulative_weights
from rollbus.streams.estimates.overlap import Overlap, measure_overlap

BEST = "doubly_robust"
"""The estimate that a decision is made on."""
NORMALISED = ("self_normalised", "doubly_robust")
"""Divided by the mean weight."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A value between its bounds."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """One estimator's answer."""

    earned: Interval
    difference: Interval
    """From what the log earned."""


@dataclass(frozen=True, slots=True)
class Estimates:
    """Everything that the episodes say; no estimates if `overlap.refusal` says why."""

    overlap: Overlap
    log: Interval
    """What was earned."""
    by_name: Mapping[str, Estimate]
    outside: int
    """Rewards outside their bounds, taken as the bound."""


def estimate_reward(episodes: Sequence[Logged], *, low: float, high: float, confidence: float = 0.95) -> Estimates:
    """Return what the other version would have earned, in the reward's own unit."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    scaled = [_scale(each, low, high) for each in episodes]
    outside = sum(not low <= each.reward <= high for each in episodes)
    rewards = [each.reward for each in scaled]
    overlap = measure_overlap([each.weight for each in scaled])
    log = _to_unit(_normal_interval(rewards, z), low, high - low) if len(rewards) > 1 else Interval(0.0, low, high)
    if overlap.refusal:
        return Estimates(overlap, log, {}, outside)
    found = {}
    for name, terms_of in _ESTIMATORS.items():
        value, terms = terms_of(scaled, overlap.clip)
        widened = _unseen(value, overlap.missing, is_normalised=name in NORMALISED)
        found[name] = _estimate(value, terms, rewards, widened, z, high - low, low)
    return Estimates(overlap, log, found, outside)


Terms = tuple[float, Sequence[float]]
"""An estimate, and how much each episode moves it: their mean is the estimate, and their spread its error."""


def _inverse_propensity(episodes: Sequence[Logged], clip: float) -> Terms:
    terms = [min(each.weight, clip) * each.reward for each in episodes]
    return _mean(terms), terms


def _self_normalised(episodes: Sequence[Logged], clip: float) -> Terms:
    return _normalised([0.0] * len(episodes), [each.reward for each in episodes], _clipped(episodes, clip))


def _per_decision(episodes: Sequence[Logged], clip: float) -> Terms:
    terms = [
        fsum(
            min(weight, clip) * step.reward
            for weight, step in zip(cumulative_weights(each.steps), each.steps, strict=True)
        )
        for each in episodes
    ]
    return _mean(terms), terms


def _doubly_robust(episodes: Sequence[Logged], clip: float) -> Terms:
    expected: Sequence[Expected] = predict_rewards(episodes)
    errors = [each.reward - found.of_answer for each, found in zip(episodes, expected, strict=True)]
    return _normalised([found.of_version for found in expected], errors, _clipped(episodes, clip))


def _normalised(known: Sequence[float], corrections: Sequence[float], weights: Sequence[float]) -> Terms:
    """Return mean(known) + Σ weight × correction / Σ weight; the spread of a ratio is that of its linear part."""
    mean_weight = _mean(weights)
    corrected = fsum(w * c for w, c in zip(weights, corrections, strict=True)) / fsum(weights)
    terms = [
        base + corrected + weight * (correction - corrected) / mean_weight
        for base, correction, weight in zip(known, corrections, weights, strict=True)
    ]
    return _mean(known) + corrected, terms


_ESTIMATORS: Mapping[str, Callable[[Sequence[Logged], float], Terms]] = {
    "ips": _inverse_propensity,
    "self_normalised": _self_normalised,
    "per_decision": _per_decision,
    "doubly_robust": _doubly_robust,
}


def _unseen(value: float, missing: float, *, is_normalised: bool) -> tuple[float, float]:
    """Return how much less and how much more it may be for what the log does not show, which earns from 0 to 1.

    A plain mean counts it as 0; a normalised one as what the rest earns.
    """
    return (missing * value, missing * (1 - value)) if is_normalised else (0.0, missing)


def _estimate(
    value: float,
    terms: Sequence[float],
    rewards: Sequence[float],
    unseen: tuple[float, float],
    z: float,
    span: float,
    low: float,
) -> Estimate:
    inside, (below, above) = min(1.0, max(0.0, value)), unseen
    earned = _normal_interval(terms, z)
    apart = _normal_interval([term - reward for term, reward in zip(terms, rewards, strict=True)], z)
    whole = Interval(inside, max(0.0, earned.low - below), min(1.0, earned.high + above))
    difference = Interval(apart.value * span, (apart.low - below) * span, (apart.high + above) * span)
    return Estimate(_to_unit(whole, low, span), difference)


def _scale(episode: Logged, low: float, high: float) -> Logged:
    """Bring the reward to [0, 1]; what lies outside its bounds is taken from the last turn, or given to it."""
    span = high - low
    steps = [Step(step.log_ratio, step.reward / span) for step in episode.steps]
    wanted = min(1.0, max(0.0, (episode.reward - low) / span))
    last = steps[-1]
    steps[-1] = Step(last.log_ratio, last.reward + wanted - fsum(step.reward for step in steps))
    return Logged(
        episode.episode_id, episode.task, episode.opening, tuple(steps), episode.answer, episode.answer_probability
    )


def _clipped(episodes: Sequence[Logged], clip: float) -> list[float]:
    return [min(each.weight, clip) for each in episodes]


def _normal_interval(terms: Sequence[float], z: float) -> Interval:
    mean = _mean(terms)
    variance = fsum((term - mean) ** 2 for term in terms) / (len(terms) - 1)
    half = z * sqrt(variance / len(terms))
    return Interval(mean, mean - half, mean + half)


def _to_unit(interval: Interval, low: float, span: float) -> Interval:
    return Interval(low + interval.value * span, low + interval.low * span, low + interval.high * span)


def _mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values)
