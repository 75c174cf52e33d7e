"""Evaluation records: what was measured, with its interval."""

import math

import pytest

from rollbus.schemas.codec import decode, encode
from rollbus.schemas.errors import InvalidRecordError
from rollbus.schemas.numbers import LARGEST
from rollbus.trainer.ledger.log import evaluation_key
from rollbus.trainer.validation.evaluation import (
    build_evaluation,
    difference,
    mean_interval,
    share_interval,
)


def test_a_share_has_wilsons_interval() -> None:
    """81 of 263: the example of Newcombe's paper, table I."""
    low, share, high = share_interval([1.0] * 81 + [0.0] * 182)
    assert share == pytest.approx(81 / 263)
    assert (round(low, 4), round(high, 4)) == (0.2553, 0.3662)


def test_a_share_of_all_or_nothing_still_has_a_width() -> None:
    low, share, high = share_interval([1.0] * 20)
    assert (share, high) == (1.0, 1.0)
    assert 0.8 < low < 0.9
    assert share_interval([0.0] * 20)[0] == 0.0


def test_a_mean_has_the_interval_of_its_standard_error() -> None:
    low, mean, high = mean_interval([1.0, 2.0, 3.0, 4.0])
    assert mean == 2.5
    assert high - mean == pytest.approx(mean - low) == pytest.approx(1.96 * (5 / 3) ** 0.5 / 2, abs=1e-3)
    assert mean_interval([0.5, 0.5, 0.5]) == (0.5, 0.5, 0.5)


def test_a_repeated_measurement_gives_the_same_evaluation_record() -> None:
    samples = {"win_rate": [1.0, 0.0, 1.0], "turns": [3.0, 4.0, 5.0]}
    evaluation = build_evaluation(
        samples, model="agent", policy_version=3, name="held-out", now_ms=1, run_id="main", seed=7
    )
    later_evaluation = build_evaluation(
        samples, model="agent", policy_version=3, name="held-out", now_ms=2, run_id="main", seed=7
    )
    assert evaluation.evaluation_id == later_evaluation.evaluation_id
    assert evaluation.episodes == 3
    assert set(evaluation.metrics) == {"win_rate", "win_rate_low", "win_rate_high", "turns", "turns_low", "turns_high"}
    assert evaluation_key(evaluation) == "main"
    assert decode(encode(evaluation)) == evaluation


def test_a_metric_that_would_stand_for_a_bound_of_another_is_refused() -> None:
    samples = {"reward": [1.0, 2.5], "reward_low": [0.0, 7.0]}
    with pytest.raises(InvalidRecordError, match="'reward_low' has the name of a bound"):
        build_evaluation(samples, model="agent", policy_version=3, name="held-out", now_ms=1)


@pytest.mark.parametrize("samples", [{}, {"a": []}, {"a": [1.0], "b": [1.0, 2.0]}])
def test_metrics_of_different_length_are_refused(samples: dict[str, list[float]]) -> None:
    with pytest.raises(InvalidRecordError, match="one value per episode"):
        build_evaluation(samples, model="agent", policy_version=3, name="held-out", now_ms=1)


@pytest.mark.parametrize("value", [1e308, -1e31, math.inf, math.nan])
def test_a_metric_that_cannot_be_computed_with_is_refused_by_name(value: float) -> None:
    with pytest.raises(InvalidRecordError, match=r"metric 'reward' is .*; it must be a number of at most 1e\+30"):
        build_evaluation({"reward": [value, value]}, model="agent", policy_version=3, name="held-out", now_ms=1)


def test_a_metric_at_the_bound_has_a_mean_and_an_interval() -> None:
    evaluation = build_evaluation({"reward": [LARGEST, -LARGEST]}, model="a", policy_version=3, name="h", now_ms=1)
    assert all(map(math.isfinite, evaluation.metrics.values()))


def test_a_difference_of_shares_has_newcombes_interval() -> None:
    """56 of 70 against 48 of 80: the example of Newcombe's paper, method 10."""
    after, before = (
        build_evaluation(
            {"win": [1.0] * wins + [0.0] * (games - wins)}, model="agent", policy_version=version, name="h", now_ms=1
        )
        for version, wins, games in ((1, 56, 70), (0, 48, 80))
    )
    low, value, high = difference(after, before, "win")
    assert (round(low, 4), round(value, 4), round(high, 4)) == (0.0524, 0.2, 0.3339)


def test_a_single_value_makes_no_difference_certain() -> None:
    """One value has no spread: a width of nothing would call any difference certain."""
    before, after = (
        build_evaluation({"reward": [value]}, model="agent", policy_version=version, name="h", now_ms=1)
        for version, value in ((0, 0.3), (1, 0.4))
    )
    assert after.metrics == {"reward": 0.4}
    low, value, high = difference(after, before, "reward")
    assert (low, round(value, 9), high) == (-math.inf, 0.1, math.inf)
