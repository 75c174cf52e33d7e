"""Two arms become an effect with an interval, and a verdict."""

from collections.abc import Iterable
from random import Random

import pytest

from rollbus.streams.stages.delivery.evidence.effect import Effect, Stratum
from rollbus.streams.stages.delivery.evidence.verdict import judge

Outcome = tuple[bool, float, float]
"""Whether of the canary, its share, and the outcome."""


def observe(outcomes: Iterable[Outcome]) -> Effect:
    effect, stratum = Effect(), Stratum()
    for is_canary, share, outcome in outcomes:
        effect = effect.add(outcome, stratum, is_canary=is_canary, share=share)
        stratum = stratum.add(outcome, is_canary=is_canary)
    return effect


def traffic(effect: float, episodes: int = 4_000, share: float = 0.25, seed: int = 1) -> list[Outcome]:
    chance = Random(seed)
    arms = [chance.random() < share for _ in range(episodes)]
    return [(arm, share, float(chance.random() < 0.6 + effect * arm)) for arm in arms]


def test_a_case_worked_by_hand() -> None:
    effect = observe([(False, 0.5, 1.0), (True, 0.5, 0.0)])
    # first: 0.5 expected of both; −½ (1 − ½) + 0.  Then serving (1 + ½) / 2 = ¾, canary the same; ½ (0 − ¾) + 0
    assert effect.total == pytest.approx(-0.25 - 0.375)
    assert effect.variance == pytest.approx(0.25**2 + 0.375**2)
    assert (effect.weight, effect.canary, effect.serving) == (0.5, 1, 1)


@pytest.mark.parametrize("true", [-0.2, 0.0, 0.2])
def test_the_interval_holds_the_true_effect_and_the_mean_is_near_it(true: float) -> None:
    effect = observe(traffic(true))
    low, high = effect.interval(0.05)
    assert low < true < high
    assert effect.mean == pytest.approx(true, abs=0.06)


def test_without_episodes_nothing_is_known() -> None:
    assert Effect().interval(0.05) == (-1.0, 1.0)
    assert judge(Effect(), goal="more", margin=0.02, tolerance=0, alpha=0.05) == "unknown"


def test_a_share_that_grows_with_harder_tasks_does_not_harm_the_canary() -> None:
    chance, outcomes = Random(5), list[Outcome]()
    for share, good in ((0.05, 0.9), (0.5, 0.3)):
        for _ in range(3_000):
            outcomes.append((chance.random() < share, share, float(chance.random() < good)))
    means = {arm: [outcome for is_canary, _, outcome in outcomes if is_canary is arm] for arm in (True, False)}
    naive = sum(means[True]) / len(means[True]) - sum(means[False]) / len(means[False])
    assert naive < -0.2
    assert observe(outcomes).mean == pytest.approx(0, abs=0.05)


@pytest.mark.parametrize(
    ("effect", "verdict"), [(-0.2, "worse"), (0.2, "better"), (0.0, "not_worse")], ids=["worse", "better", "same"]
)
def test_the_verdict_names_what_is_certain(effect: float, verdict: str) -> None:
    evidence = observe(traffic(effect, episodes=10_000))
    assert judge(evidence, goal="more", margin=0.06, tolerance=0, alpha=0.05) == verdict


def test_verdicts_are_reversed_if_less_is_better() -> None:
    longer = observe(traffic(0.2))
    assert judge(longer, goal="less", margin=0.02, tolerance=0, alpha=0.05) == "worse"
    assert judge(longer, goal="less", margin=0.02, tolerance=0.5, alpha=0.05) == "unknown"
    shorter = observe(traffic(-0.2))
    assert judge(shorter, goal="less", margin=0.02, tolerance=0, alpha=0.05) == "better"
