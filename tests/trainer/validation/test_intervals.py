"""Intervals, against values worked out elsewhere."""

import pytest

from rollbus.trainer.validation.evaluation import difference_interval, mean_interval, wilson_interval


def test_wilson_matches_the_published_example() -> None:
    # Newcombe 1998, table I: 81 of 263 gives 0.2553 to 0.3662.
    low, _, high = wilson_interval(81, 263)
    assert (low, high) == pytest.approx((0.2553, 0.3662), abs=5e-5)


def test_wilson_stays_within_zero_and_one() -> None:
    assert wilson_interval(0, 10)[0] == 0.0
    assert wilson_interval(10, 10)[2] == 1.0


def test_newcombes_difference_matches_the_published_example() -> None:
    # Newcombe 1998b, table II, method 10: 56/70 − 48/80 gives 0.0524 to 0.3339.
    found = difference_interval(wilson_interval(56, 70), wilson_interval(48, 80))
    assert found == pytest.approx((0.0524, 0.2, 0.3339), abs=5e-5)


def test_the_band_of_equal_rewards_has_no_width() -> None:
    assert mean_interval([0.5, 0.5, 0.5]) == (0.5, 0.5, 0.5)
