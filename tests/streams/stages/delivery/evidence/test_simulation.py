"""Canaries by the hundred: how often a test that is looked at after every episode is wrong, and when it is right."""

from random import Random

import numpy as np
import pytest

from rollbus.streams.stages.delivery.evidence.effect import Effect, Stratum
from rollbus.streams.stages.delivery.evidence.verdict import judge
from tests.streams.stages.delivery.evidence.simulation import ALPHA, Arms, World, gamed, simulate, two_in_a_row

NULLS = {
    "steady": World(),
    "a day passes and the tasks change": World(drift=0.25, hard=0.3),
    "praise comes late, or never": World(praise_late=1000, missing=0.2),
}


def test_the_arrays_of_the_simulation_are_the_sums_of_the_product() -> None:
    chance, arms, effect, strata = Random(3), Arms(1), Effect(), [Stratum(), Stratum()]
    for _ in range(500):
        is_canary, outcome, kind = chance.random() < 0.3, chance.random(), chance.randrange(2)
        arrays = [np.array([value]) for value in (True, outcome, is_canary, 0.3, kind)]
        arms.add(*arrays)
        effect = effect.add(outcome, strata[kind], is_canary=is_canary, share=0.3)
        strata[kind] = strata[kind].add(outcome, is_canary=is_canary)
    sums = (arms.total[0], arms.variance[0], arms.weight[0])
    assert sums == pytest.approx((effect.total, effect.variance, effect.weight))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a day passes and the tasks change", "praise comes late, or never"])
def test_a_canary_without_a_difference_is_rarely_judged_at_many_looks(name: str) -> None:
    _require_few_errors(NULLS[name], runs=300, least_naive=0.25)


@pytest.mark.faults
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("world", NULLS.values(), ids=NULLS)
def test_few_of_ten_thousand_equal_canaries_are_judged(world: World) -> None:
    _require_few_errors(world, runs=10_000, least_naive=0.4)


@pytest.mark.slow
@pytest.mark.parametrize(("effect", "most", "episodes"), [(-0.1, 700, 8_000), (-0.05, 2600, 16_000)])
def test_a_worse_canary_is_stopped_within_the_stated_episodes(effect: float, most: int, episodes: int) -> None:
    result = simulate(World(effect=effect, episodes=episodes), runs=200, seed=7)
    stopped = (result.worse >= 0) & (result.worse <= most)
    assert stopped.mean() >= 0.85
    assert (result.better >= 0).sum() == 0


@pytest.mark.slow
def test_a_gamed_reward_is_stopped_by_what_falls_before_it_is_promoted() -> None:
    caught, _ = gamed(runs=200, seed=7)
    assert caught.mean() > 0.85


@pytest.mark.faults
@pytest.mark.timeout(1200)
def test_a_second_canary_is_judged_by_its_own_evidence_alone() -> None:
    first, second = two_in_a_row(runs=10_000, seed=7)
    assert (first.worse >= 0).mean() > 0.95
    assert ((second.worse >= 0) | (second.better >= 0)).mean() <= ALPHA
    assert second.covered.mean() >= 1 - ALPHA


def plugged_in_alarms(first_look: int) -> float:
    """The false alarms of a sequential test (mixture of normals, nominal 5 %) that puts its estimate for the variance.

    That is the mixture sequential probability ratio test of Johari, Pekelis, Walsh (2015) on standard normal values.
    """
    values = np.random.default_rng(1).standard_normal((4_000, 1_000))
    count, sums = np.arange(1, 1_001), values.cumsum(1)
    variance = ((values**2).cumsum(1) - sums**2 / count).clip(0) / np.maximum(count - 1, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_ratio = np.log(variance / (variance + count)) / 2 + sums**2 / (2 * variance * (variance + count))
    return float((log_ratio >= -np.log(ALPHA))[:, first_look - 1 :].any(1).mean())


def test_an_estimate_that_is_taken_for_the_variance_makes_false_alarms() -> None:
    assert plugged_in_alarms(2) == pytest.approx(0.28, abs=0.02)
    assert plugged_in_alarms(10) == pytest.approx(0.052, abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("base", [0.02, 0.5, 0.98])
def test_the_first_episodes_make_no_false_alarms(base: float) -> None:
    """Where nearly all outcomes are equal, what an estimate of their variance would be is 0 for long."""
    result = simulate(World(base=base, episodes=2_000, steps=(0.3,)), runs=400, seed=11)
    assert np.median(result.canary) > 500
    assert ((result.worse >= 0) | (result.better >= 0)).mean() <= ALPHA / 2
    assert result.covered.mean() >= 1 - ALPHA


@pytest.mark.parametrize("share", [0.02, 0.1, 0.3, 0.5])
def test_no_verdict_comes_before_the_fourteenth_episode_of_a_canary(share: float) -> None:
    """Not even where the canary fails always and the serving version never."""
    chance, effect, stratum = Random(1), Effect(), Stratum()
    while judge(effect, goal="more", margin=0.02, tolerance=0.0, alpha=ALPHA) == "unknown":
        is_canary = chance.random() < share
        outcome = 0.0 if is_canary else 1.0
        effect = effect.add(outcome, stratum, is_canary=is_canary, share=share)
        stratum = stratum.add(outcome, is_canary=is_canary)
    assert 14 <= effect.canary <= 30


@pytest.mark.slow
def test_half_of_the_worse_canaries_are_stopped_within_the_stated_episodes() -> None:
    result = simulate(World(effect=-0.05), runs=400, seed=7)
    stopped = result.worse[result.worse >= 0]
    assert len(stopped) / 400 > 0.93
    assert np.median(stopped) == pytest.approx(1134, rel=0.12)
    assert np.quantile(stopped, 0.9) == pytest.approx(2316, rel=0.12)


def _require_few_errors(world: World, *, runs: int, least_naive: float) -> None:
    result = simulate(world, runs=runs, seed=7)
    assert ((result.worse >= 0) | (result.better >= 0)).mean() <= ALPHA
    assert result.covered.mean() >= 1 - ALPHA
    assert (result.naive >= 0).mean() > least_naive, "the z test that peeks is the negative control"
