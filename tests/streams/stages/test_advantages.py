"""Advantages: what shifts, scales and the order of a group's rewards do."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbus.streams.stages.grouping.advantages import advantages

KINDS: list[Any] = ["mean", "mean_std", "unbiased_std", "leave_one_out"]
rewards = st.lists(st.integers(-20, 20).map(lambda value: value / 4), min_size=1, max_size=6)
"""A singleton and equal rewards among them."""


@given(rewards, st.sampled_from(KINDS))
def test_advantages_sum_to_zero_and_vanish_without_signal(group: list[float], kind: Any) -> None:
    group_advantages = advantages(group, kind)
    assert sum(group_advantages) == pytest.approx(0, abs=1e-9)
    if len(set(group)) == 1:
        assert group_advantages == [0.0] * len(group)


@given(rewards, st.sampled_from(KINDS), st.integers(-40, 40))
def test_a_constant_added_to_the_rewards_changes_nothing(group: list[float], kind: Any, constant: int) -> None:
    shifted = [reward + constant for reward in group]
    assert advantages(shifted, kind) == pytest.approx(advantages(group, kind), rel=1e-9, abs=1e-9)


@given(rewards, st.sampled_from(["mean", "leave_one_out"]), st.sampled_from([0.5, 2.0, 8.0]))
def test_a_factor_on_all_rewards_is_a_factor_on_the_advantages(group: list[float], kind: Any, factor: float) -> None:
    expected = [factor * value for value in advantages(group, kind)]
    assert advantages([reward * factor for reward in group], kind) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(rewards, st.sampled_from([2.0, 8.0]))
def test_divided_by_the_deviation_a_factor_on_all_rewards_changes_nothing(group: list[float], factor: float) -> None:
    """But for the epsilon that is added to the deviation, which is at least a quarter of 1/√6 here."""
    scaled = advantages([reward * factor for reward in group], "mean_std")
    assert scaled == pytest.approx(advantages(group, "mean_std"), rel=2e-5, abs=1e-12)


@given(rewards, st.sampled_from(KINDS), st.randoms())
def test_the_order_of_members_does_not_matter(group: list[float], kind: Any, random: Any) -> None:
    order = list(range(len(group)))
    random.shuffle(order)
    straight, shuffled = advantages(group, kind), advantages([group[index] for index in order], kind)
    assert [straight[index] for index in order] == pytest.approx(shuffled, rel=1e-9, abs=1e-9)


def test_leave_one_out_is_the_distance_to_the_mean_of_the_others() -> None:
    assert advantages([1.0, 0.0, 0.0, 0.0], "leave_one_out") == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3])
    assert advantages([3.0, 1.0], "leave_one_out") == pytest.approx([2, -2])


def test_a_singleton_has_no_advantage() -> None:
    assert [advantages([0.7], kind) for kind in KINDS] == [[0.0]] * len(KINDS)


def test_mean_std_is_arts() -> None:
    group_advantages = advantages([0.0, 1.0], "mean_std")
    assert group_advantages == [-0.5 / (0.5 + 1e-6), 0.5 / (0.5 + 1e-6)]
