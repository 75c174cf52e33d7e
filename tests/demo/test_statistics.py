"""Intervals, against values worked out elsewhere."""

import pytest

from rollbus.demo.game.game import Result
from rollbus.demo.show.statistics import Interval, Tally, difference, mean_interval, wilson


def test_wilson_matches_the_published_example() -> None:
    # Newcombe 1998, table I: 81 of 263 gives 0.2553 to 0.3662.
    interval = wilson(81, 263)
    assert (interval.low, interval.high) == pytest.approx((0.2553, 0.3662), abs=5e-5)


def test_wilson_without_games_says_that_everything_is_possible() -> None:
    assert wilson(0, 0) == Interval(0.0, 0.0, 1.0)


def test_wilson_stays_within_zero_and_one() -> None:
    assert wilson(0, 10).low == 0.0
    assert wilson(10, 10).high == 1.0


def test_newcombes_difference_matches_the_published_example() -> None:
    # Newcombe 1998b, table II, method 10: 56/70 − 48/80 gives 0.0524 to 0.3339.
    interval = difference(wilson(56, 70), wilson(48, 80))
    assert (interval.low, interval.value, interval.high) == pytest.approx((0.0524, 0.2, 0.3339), abs=5e-5)


def test_equal_rates_do_not_exclude_zero() -> None:
    interval = difference(wilson(400, 800), wilson(400, 800))
    assert interval.low < 0.0 < interval.high


def test_a_tally_counts_each_game_once() -> None:
    tally = Tally.of([Result.WIN, Result.WIN, Result.DRAW, Result.ILLEGAL])
    assert tally == Tally(wins=2, draws=1, losses=0, illegal=1)
    assert tally.games == 4
    assert tally.rate(Result.WIN).value == 0.5


def test_the_band_of_equal_rewards_has_no_width() -> None:
    assert mean_interval([0.5, 0.5, 0.5]) == Interval(0.5, 0.5, 0.5)
    assert mean_interval([]) == Interval(0.0, 0.0, 0.0)


def test_an_interval_reads_as_percent() -> None:
    assert wilson(400, 800).percent() == "50.0 % [46.5, 53.5]"
