"""Advantages and aggregation: what shifts, scales and sizes of groups do, and agreement with what grouping records."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollbus.streams import grouping_maths
from rollbus.trainer import grpo

KINDS: list[Any] = ["mean", "mean_std", "leave_one_out"]
rewards = st.lists(
    st.lists(st.integers(-20, 20).map(lambda value: value / 4), min_size=1, max_size=6), min_size=1, max_size=5
)
"""Groups of unequal sizes, singletons and equal rewards among them."""


def flat(groups: list[list[float]]) -> tuple[torch.Tensor, torch.Tensor]:
    sizes = torch.tensor([len(group) for group in groups])
    values = torch.tensor([reward for group in groups for reward in group], dtype=torch.float64)
    return values, torch.repeat_interleave(torch.arange(len(groups)), sizes)


@given(rewards, st.sampled_from(KINDS))
def test_they_are_those_that_grouping_records(groups: list[list[float]], kind: Any) -> None:
    found = grpo.group_advantages(*flat(groups), kind)
    expected = [value for group in groups for value in grouping_maths.advantages(group, kind)]
    assert found.advantages_K.tolist() == pytest.approx(expected, abs=1e-9)


@given(rewards, st.sampled_from(KINDS))
def test_they_sum_to_zero_in_each_group_and_vanish_without_signal(groups: list[list[float]], kind: Any) -> None:
    values, group = flat(groups)
    found = grpo.group_advantages(values, group, kind)
    for index, members in enumerate(groups):
        own = found.advantages_K[group == index]
        assert float(own.sum()) == pytest.approx(0, abs=1e-9)
        if len(set(members)) == 1:
            assert own.tolist() == [0.0] * len(members)
        assert bool(found.has_signal_K[group == index].all()) == (len(set(members)) > 1)


@given(rewards, st.sampled_from(KINDS), st.integers(-40, 40))
def test_a_constant_added_to_one_groups_rewards_changes_nothing(
    groups: list[list[float]], kind: Any, constant: int
) -> None:
    shifted = [[reward + constant for reward in groups[0]], *groups[1:]]
    before, after = (grpo.group_advantages(*flat(each), kind).advantages_K for each in (groups, shifted))
    assert torch.allclose(before, after, rtol=1e-9, atol=1e-9)


@given(rewards, st.sampled_from(["mean", "leave_one_out"]), st.sampled_from([0.5, 2.0, 8.0]))
def test_a_factor_on_all_rewards_is_a_factor_on_the_advantages(
    groups: list[list[float]], kind: Any, factor: float
) -> None:
    values, group = flat(groups)
    before, after = (grpo.group_advantages(each, group, kind).advantages_K for each in (values, values * factor))
    assert torch.allclose(before * factor, after, rtol=1e-9, atol=1e-12)


@given(rewards, st.sampled_from([2.0, 8.0]))
def test_divided_by_the_deviation_a_factor_on_all_rewards_changes_nothing(
    groups: list[list[float]], factor: float
) -> None:
    """But for the epsilon beside the deviation, which is at least a quarter of 1/√6 here."""
    values, group = flat(groups)
    before, after = (grpo.group_advantages(each, group, "mean_std").advantages_K for each in (values, values * factor))
    assert torch.allclose(before, after, rtol=2e-5, atol=0)


@given(rewards, st.sampled_from(KINDS), st.randoms())
def test_the_order_of_members_does_not_matter(groups: list[list[float]], kind: Any, random: Any) -> None:
    values, group = flat(groups)
    order = list(range(len(values)))
    random.shuffle(order)
    at = torch.tensor(order)
    straight, shuffled = grpo.group_advantages(values, group, kind), grpo.group_advantages(values[at], group[at], kind)
    assert torch.allclose(straight.advantages_K[at], shuffled.advantages_K, rtol=1e-9, atol=1e-9)


def test_leave_one_out_is_the_distance_to_the_mean_of_the_others() -> None:
    values, group = flat([[1.0, 0.0, 0.0, 0.0], [3.0, 1.0]])
    found = grpo.group_advantages(values, group, "leave_one_out")
    assert found.advantages_K.tolist() == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3, 2, -2])
    assert found.means_K.tolist() == pytest.approx([0.25] * 4 + [2.0] * 2)


def test_a_singleton_has_no_advantage_but_over_a_known_baseline() -> None:
    values, group = flat([[0.7]])
    assert grpo.group_advantages(values, group, "mean_std").advantages_K.tolist() == [0.0]
    known = grpo.group_advantages(values, group, "baseline", baseline_K=torch.tensor([0.5], dtype=torch.float64))
    assert known.advantages_K.tolist() == pytest.approx([0.2])
    with pytest.raises(ValueError, match="baseline_K"):
        grpo.group_advantages(values, group, "baseline")


def test_no_rewards_make_no_advantages() -> None:
    empty = grpo.group_advantages(torch.zeros(0), torch.zeros(0, dtype=torch.long))
    assert empty.advantages_K.numel() == 0


LENGTHS = [[3, 1], [2], [4, 4, 2]]
"""Sampled tokens of each trajectory, by group."""


def trajectories_and_groups() -> tuple[torch.Tensor, torch.Tensor]:
    lengths = torch.tensor([length for group in LENGTHS for length in group])
    groups = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor([len(group) for group in LENGTHS]))
    trajectory_N = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    return trajectory_N, groups[trajectory_N]


@pytest.mark.parametrize("aggregation", ["token_mean", "trajectory_mean", "prompt_mean", "constant"])
def test_weights_have_mean_one_and_count_their_unit_alike(aggregation: Any) -> None:
    trajectory_N, group_N = trajectories_and_groups()
    weights_N = grpo.token_weights(aggregation, trajectory_N, group_N, dtype=torch.float64)
    assert float(weights_N.mean()) == pytest.approx(1)
    unit_N = {"trajectory_mean": trajectory_N, "prompt_mean": group_N}.get(aggregation, torch.arange(len(group_N)))
    sums = torch.zeros(int(unit_N.max()) + 1, dtype=torch.float64).index_add(0, unit_N, weights_N)
    assert sums.tolist() == pytest.approx([float(sums[0])] * len(sums))


@pytest.mark.parametrize("aggregation", ["token_mean", "trajectory_mean", "prompt_mean", "constant"])
def test_weights_by_counts_are_those_of_tensors(aggregation: Any) -> None:
    plain = [
        grpo.token_weight(aggregation, trajectory_tokens=length, group_tokens=sum(group))
        for group in LENGTHS
        for length in group
        for _ in range(length)
    ]
    mean = sum(plain) / len(plain)
    weights_N = grpo.token_weights(aggregation, *trajectories_and_groups(), dtype=torch.float64)
    assert weights_N.tolist() == pytest.approx([weight / mean for weight in plain])


def test_a_constant_divides_by_sequences_whatever_their_length() -> None:
    assert grpo.divisor("constant", tokens=17, sequences=6, constant_tokens=100) == 600.0
    assert grpo.divisor("prompt_mean", tokens=17, sequences=6, constant_tokens=None) == 17.0
    with pytest.raises(ValueError, match="aggregation_tokens"):
        grpo.divisor("constant", tokens=17, sequences=6, constant_tokens=None)
