"""A share of a count is what the decimal gives that the user wrote."""

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from math import ceil, floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbus.schemas.shares import share_of


@pytest.mark.parametrize(
    ("share", "count", "whole"),
    [(0.28, 25, 7), (0.07, 100, 7), (0.29, 100, 29), (0.1 + 0.1 + 0.1, 10, 3), (2 / 3, 3, 2)],
)
def test_a_share_that_is_a_whole_number_is_not_rounded(share: float, count: int, whole: int) -> None:
    assert (ceil(share_of(share, count)), floor(share_of(share, count))) == (whole, whole)


@given(st.decimals(0, 1, places=6), st.integers(0, 10**6))
def test_a_share_is_taken_as_it_was_written(written: Decimal, count: int) -> None:
    exact = written * count
    assert ceil(share_of(float(written), count)) == int(exact.to_integral_value(ROUND_CEILING))
    assert floor(share_of(float(written), count)) == int(exact.to_integral_value(ROUND_FLOOR))
