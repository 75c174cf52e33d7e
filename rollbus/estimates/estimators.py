"""What another version would have earned: five estimates of the same number, each with its interval.

    log             what was earned, by the versions that answered
    ips             mean of weight × reward (Horvitz and Thompson, JASA 47, 1952)
    self_normalised the same, divided by the mean weight (Swaminathan and Joachims, NeurIPS 2015)
    per_decision    each turn's reward by the weight of the turns up to it (Precup, Sutton, Singh, ICML 2000)
    doubly_robust   what a fitted model expects, corrected by weighted errors (Dudík, Langford, Li, ICML 2011), which
                    are self-normalised (Thomas and Brunskill, ICML 2016)

Rewards are brought to [0, 1]. An interval is the normal one of the estimate's own terms. Where nearly all rewards are
equal, few episodes decide and that one is too narrow: so it reaches at least as far as Wilson's (JASA 22, 1927), of as
many episodes as the effective ones (Korn and Graubard, Survey Methodology 24(2), 1998). Both are widened by what the
log does not show (`overlap.missing`), taken at its worst below and at its best above.

Every estimate is also given as its difference from what the log earned: both are of the same episodes, so the
difference is more certain than either. To its variance, z² episodes are added, half of which earn 0 and half 1, with
weights that spread as those of the log do (after Agresti and Caffo, American Statistician 54(4), 2000).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, sqrt

from rollbus.estimates.episode import Step, WeightedEpisode, cumulative_weights
from rollbus.estimates.expected_reward import Expected, predict_rewards
from rollbus.estimates.overlap import Overlap, measure_overlap
from rollbus.trainer.validation.evaluation import Z_95

BEST = "doubly_robust"
"""The estimate that a decision is made on."""
NORMALISED = ("self_normalised", "doubly_robust")
"""Estimates that are divided by the mean weight."""


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


def estimate_reward(episodes: Sequence[WeightedEpisode], *, low: float, high: float) -> Estimates:
    """Return what the other version would have earned, in the reward's own unit."""
    scaled = [_scale(episode, low, high) for episode in episodes]
    outside = sum(not low <= episode.reward <= high for episode in episodes)
    rewards = [scaled_episode.reward for scaled_episode in scaled]
    overlap = measure_overlap([scaled_episode.weight for scaled_episode in scaled])
    span, equal_weights = high - low, 1.0
    has_spread = len(rewards) > 1
    scaled_log = _mean_interval(rewards, equal_weights) if has_spread else Interval(fsum(rewards), 0.0, 1.0)
    log = _in_reward_unit(scaled_log, low, span)
    if overlap.refusal:
        return Estimates(overlap, log, {}, outside)
    estimates, mean_square_weight = {}, overlap.episodes / overlap.effective
    for name, terms_of in _ESTIMATORS.items():
        value, terms = terms_of(scaled, overlap.clip)
        below, above = _missing_bounds(value, overlap.missing, is_normalised=name in NORMALISED)
        earned = _mean_interval(terms, mean_square_weight)
        difference = _difference_interval(terms, rewards, mean_square_weight)
        widened = Interval(_clamp_to_unit(value), max(0.0, earned.low - below), min(1.0, earned.high + above))
        widened_difference = Interval(difference.value, difference.low - below, difference.high + above)
        estimates[name] = Estimate(_in_reward_unit(widened, low, span), _in_reward_unit(widened_difference, 0.0, span))
    return Estimates(overlap, log, estimates, outside)


Terms = tuple[float, Sequence[float]]
"""An estimate, and how much each episode moves it: their mean is the estimate, and their spread its error."""


def _inverse_propensity(episodes: Sequence[WeightedEpisode], clip: float) -> Terms:
    terms = [min(episode.weight, clip) * episode.reward for episode in episodes]
    return _mean(terms), terms


def _self_normalised(episodes: Sequence[WeightedEpisode], clip: float) -> Terms:
    return _self_normalised_terms(
        [0.0] * len(episodes), [episode.reward for episode in episodes], _clip_weights(episodes, clip)
    )


def _per_decision(episodes: Sequence[WeightedEpisode], clip: float) -> Terms:
    terms = [
        fsum(
            min(weight, clip) * step.reward
            for weight, step in zip(cumulative_weights(episode.steps), episode.steps, strict=True)
        )
        for episode in episodes
    ]
    return _mean(terms), terms


def _doubly_robust(episodes: Sequence[WeightedEpisode], clip: float) -> Terms:
    predictions: Sequence[Expected] = predict_rewards(episodes)
    errors = [episode.reward - prediction.of_answer for episode, prediction in zip(episodes, predictions, strict=True)]
    return _self_normalised_terms(
        [prediction.of_version for prediction in predictions], errors, _clip_weights(episodes, clip)
    )


def _self_normalised_terms(bases: Sequence[float], corrections: Sequence[float], weights: Sequence[float]) -> Terms:
    """Return mean(bases) + Σ weight × correction / Σ weight; the spread of a ratio is that of its linear part."""
    mean_weight = _mean(weights)
    mean_correction = fsum(weight * correction for weight, correction in zip(weights, corrections, strict=True)) / fsum(
        weights
    )
    terms = [
        base + mean_correction + weight * (correction - mean_correction) / mean_weight
        for base, correction, weight in zip(bases, corrections, weights, strict=True)
    ]
    return _mean(bases) + mean_correction, terms


_ESTIMATORS: Mapping[str, Callable[[Sequence[WeightedEpisode], float], Terms]] = {
    "ips": _inverse_propensity,
    "self_normalised": _self_normalised,
    "per_decision": _per_decision,
    "doubly_robust": _doubly_robust,
}


def _missing_bounds(value: float, missing: float, *, is_normalised: bool) -> tuple[float, float]:
    """Return how much less and how much more it may be for what the log does not show, which earns from 0 to 1.

    A plain mean counts it as 0; a normalised one as what the rest earns.
    """
    return (missing * value, missing * (1 - value)) if is_normalised else (0.0, missing)


def _scale(episode: WeightedEpisode, low: float, high: float) -> WeightedEpisode:
    """Bring the reward to [0, 1]; what lies outside its bounds is taken from the last turn, or given to it."""
    span = high - low
    steps = [Step(step.log_ratio, step.reward / span) for step in episode.steps]
    scaled_reward = min(1.0, max(0.0, (episode.reward - low) / span))
    last = steps[-1]
    steps[-1] = Step(last.log_ratio, last.reward + scaled_reward - fsum(step.reward for step in steps))
    return WeightedEpisode(
        episode.episode_id, episode.task, episode.opening, tuple(steps), episode.answer, episode.answer_probability
    )


def _clip_weights(episodes: Sequence[WeightedEpisode], clip: float) -> list[float]:
    return [min(episode.weight, clip) for episode in episodes]


def _mean_interval(terms: Sequence[float], mean_square_weight: float) -> Interval:
    """Return the hull of the normal interval of a mean and of Wilson's.

    Wilson's is the normal one of these terms and z² more episodes, half of which earn 0 and half 1. Each has the weight
    that the version's own episodes have on average: the mean square of the weights, which is count / effective.
    """
    plain, count, added = _normal_interval(terms), len(terms), Z_95 * Z_95 * mean_square_weight
    middle = plain.value + added * (0.5 - _clamp_to_unit(plain.value)) / (count + added)
    half = Z_95 * sqrt(_squared_deviations(terms) + added * mean_square_weight / 4) / (count + added)
    return Interval(plain.value, min(plain.low, middle - half), max(plain.high, middle + half))


def _difference_interval(terms: Sequence[float], rewards: Sequence[float], mean_square_weight: float) -> Interval:
    """Return the normal interval of how much more was earned; `mean_square_weight` − 1 is the weights' variance."""
    earned = _clamp_to_unit(_mean(terms))
    added = Z_95 * Z_95 * (mean_square_weight - 1) * ((0.5 - earned) ** 2 + 0.25)
    return _normal_interval([term - reward for term, reward in zip(terms, rewards, strict=True)], added)


def _normal_interval(terms: Sequence[float], added: float = 0.0) -> Interval:
    """Return the interval of a mean; `added` are squared deviations in addition to those of the terms."""
    mean, half = _mean(terms), Z_95 * sqrt(_squared_deviations(terms) + max(0.0, added)) / len(terms)
    return Interval(mean, mean - half, mean + half)


def _squared_deviations(terms: Sequence[float]) -> float:
    """Return the sum of the squared deviations; one degree of freedom is used up by the mean."""
    mean = _mean(terms)
    return fsum((term - mean) ** 2 for term in terms) * len(terms) / (len(terms) - 1)


def _clamp_to_unit(value: float) -> float:
    return min(1.0, max(0.0, value))


def _in_reward_unit(interval: Interval, low: float, span: float) -> Interval:
    return Interval(low + interval.value * span, low + interval.low * span, low + interval.high * span)


def _mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values)
