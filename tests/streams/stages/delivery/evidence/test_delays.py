"""When rewards come, from those that came and those that are still outstanding."""

from collections import Counter
from random import Random

import pytest

from rollbus.streams.stages.delivery.evidence.delays import fit_delays, share_by


def test_a_case_worked_by_hand() -> None:
    # six episodes: rewards at 10, 20, 20, 40; outstanding at 15 and at 50
    curve = fit_delays({10: 1, 20: 2, 40: 1}, {15: 1, 50: 1})
    # S: 1 − 1/6 = 5/6; at 20 four are at risk: 5/6 · (1 − 2/4) = 5/12; at 40 two: 5/24
    assert [(point.age_ms, point.at_risk) for point in curve] == [(10, 6), (20, 4), (40, 2)]
    assert [point.share for point in curve] == pytest.approx([1 / 6, 7 / 12, 19 / 24])
    assert share_by(curve, 39).share == pytest.approx(7 / 12)
    assert share_by(curve, 5).share == 0


def test_an_outstanding_reward_is_not_one_that_never_comes() -> None:
    """A naive share of the rewards that have come says a half, although all come within the same hour."""
    chance = Random(2)
    delays = [chance.expovariate(1 / 1_000) for _ in range(4_000)]
    ages = [chance.uniform(0, 4_000) for _ in delays]
    came = [int(delay) for delay, age in zip(delays, ages, strict=True) if delay <= age]
    outstanding = [int(age) for delay, age in zip(delays, ages, strict=True) if delay > age]
    share = share_by(fit_delays(Counter(came), Counter(outstanding), confidence=0.999), 2_000)
    assert share.low < 0.8647 < share.high, "1 − e⁻²"
    assert sum(delay_ms <= 2_000 for delay_ms in came) / len(delays) < 0.75


@pytest.mark.slow
def test_the_bounds_hold_the_true_share_as_often_as_they_say() -> None:
    hits = 0
    for seed in range(400):
        chance = Random(seed)
        delays = [chance.expovariate(1 / 1_000) for _ in range(150)]
        ages = [chance.uniform(0, 3_000) for _ in delays]
        came = [int(d) for d, a in zip(delays, ages, strict=True) if d <= a]
        outstanding = [int(a) for d, a in zip(delays, ages, strict=True) if d > a]
        point = share_by(fit_delays(Counter(came), Counter(outstanding)), 1_000)
        hits += point.low <= 0.63212 <= point.high
    assert hits / 400 >= 0.93


def test_without_a_reward_there_is_no_curve() -> None:
    assert fit_delays({}, {10: 1, 20: 1}) == []
    assert share_by([], 99).share == 0
