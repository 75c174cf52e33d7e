"""Aggregation: what counts alike, and what a step is divided by."""

from typing import Any

import pytest
import torch

from rollbus.trainer.grpo.aggregation import divisor
from tests.trainer.grpo.token_batches import token_weights

LENGTHS = [[3, 1], [2], [4, 4, 2]]
"""Sampled tokens of each trajectory, by group."""


@pytest.mark.parametrize("aggregation", ["token_mean", "trajectory_mean", "prompt_mean", "constant"])
def test_weights_have_mean_one_and_count_their_unit_alike(aggregation: Any) -> None:
    trajectory_N = torch.arange(6).repeat_interleave(torch.tensor([length for group in LENGTHS for length in group]))
    group_N = torch.arange(3).repeat_interleave(torch.tensor([sum(group) for group in LENGTHS]))
    weights_N = token_weights(aggregation, trajectory_N, group_N)
    assert float(weights_N.mean()) == pytest.approx(1)
    unit_N = {"trajectory_mean": trajectory_N, "prompt_mean": group_N}.get(aggregation, torch.arange(len(group_N)))
    sums = torch.zeros(int(unit_N.max()) + 1, dtype=torch.float64).index_add(0, unit_N, weights_N)
    assert sums.tolist() == pytest.approx([float(sums[0])] * len(sums))


def test_a_constant_divides_by_sequences_whatever_their_length() -> None:
    assert divisor("constant", tokens=17, sequences=6, constant_tokens=100) == 600.0
    assert divisor("prompt_mean", tokens=17, sequences=6, constant_tokens=None) == 17.0
    with pytest.raises(ValueError, match="aggregation_tokens"):
        divisor("constant", tokens=17, sequences=6, constant_tokens=None)
