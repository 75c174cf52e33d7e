"""How often intervals of estimates hold the truth of known worlds."""

from collections import Counter
from collections.abc import Mapping
from random import Random

from rollbus.estimates.divergence import estimate_divergence, refuse_divergence
from rollbus.estimates.episode import weight_of
from rollbus.estimates.estimators import estimate_reward
from rollbus.estimates.overlap import measure_overlap
from tests.estimates.worlds import KnownDrift, KnownWorld, bandit, drift, long_answers

ESTIMATORS = ("ips", "self_normalised", "per_decision", "doubly_robust")
WORLDS = {
    "bandit, rewards are rare": (bandit(0.8, most=0.04), 400),
    "long answers": (long_answers(0.5), 400),
}
"""Each with the episodes that are recorded."""
DRIFTS = {
    "answers of one token, near": (drift(0.3, 0.1), 400),
    "answers of one token, further": (drift(0.6, 0.5), 400),
    "answers of up to 16 tokens, further": (drift(0.3, 0.3, most_tokens=16), 400),
}


def measure_coverage(world: KnownWorld, *, runs: int, episodes: int) -> tuple[Mapping[str, float], float]:
    """Return by estimator how often its intervals hold the truth, and the share of the runs that were refused."""
    hits_by_estimator, answered = Counter[str](), 0
    for seed in range(runs):
        estimates = estimate_reward(world.draw(Random(seed), episodes), low=world.low, high=1)
        answered += not estimates.overlap.refusal
        for name, estimate in estimates.by_name.items():
            hits_by_estimator[name] += estimate.earned.low <= world.truth <= estimate.earned.high
            hits_by_estimator[f"{name}, difference"] += (
                estimate.difference.low <= world.truth - world.earned <= estimate.difference.high
            )
    return {name: count / max(answered, 1) for name, count in hits_by_estimator.items()}, 1 - answered / runs


def measure_drift(world: KnownDrift, *, runs: int, answers: int) -> tuple[float, float]:
    """Return how often the interval of the divergence holds the truth, and the share of the runs that were refused."""
    hits = answered = 0
    for seed in range(runs):
        drawn = world.draw(Random(seed), answers)
        weights = [weight_of(log_weight) for log_weight, _, _ in drawn]
        overlap = measure_overlap(weights)
        if refuse_divergence(overlap):
            continue
        answered += 1
        apart, tokens = [divergence for _, divergence, _ in drawn], [count for _, _, count in drawn]
        estimate = estimate_divergence(weights, apart, tokens, overlap=overlap)
        hits += estimate.low <= world.truth <= estimate.high
    return hits / max(answered, 1), 1 - answered / runs
