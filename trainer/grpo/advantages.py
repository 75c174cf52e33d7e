"""Rewards of groups → advantages: how much better a member did than those it is compared with.

Axis K runs over trajectories, `group_K` says which group each belongs to. Grouping computes the same numbers, in plain
Python, and writes them into the Group record; what is trained is that record. These are for rewards that
did not come through it, and the tests hold the two to each other.

    mean            R − mean_g                     Dr. GRPO, Liu et al. 2025 (2503.20783)
    mean_std        (R − mean_g) / (std_g + 1e-6)  GRPO, Shao et al. 2024 (2402.03300); population std, as ART
    leave_one_out   R − mean of the others         RLOO, Ahmadian et al. 2024 (2402.14740); = G/(G−1) · mean
    baseline        R − b_g                        REINFORCE with a baseline known beforehand

E[gradient] under `mean` is (G−1)/G of the true one, so groups of different sizes count unequally; `leave_one_out` has
no such factor. A group of one, or one whose rewards are all equal, has advantage 0 (never its raw reward), but for
`baseline`, which needs no companions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

AdvantageKind = Literal["mean", "mean_std", "leave_one_out", "baseline"]

STD_EPSILON = 1e-6
"""As ART; added to the deviation."""
TOLERANCE = 1e-9
"""Rewards of a group that differ by no more than this share of their size are equal: what differs is rounding."""


@dataclass(frozen=True, slots=True)
class GroupAdvantages:
    advantages_K: Tensor
    means_K: Tensor
    """Mean reward of the group, at each of its members."""
    has_signal_K: Tensor
    """False where the group cannot tell its members apart."""


def group_advantages(
    rewards_K: Tensor, group_K: Tensor, kind: AdvantageKind = "mean", *, baseline_K: Tensor | None = None
) -> GroupAdvantages:
    """Compare each trajectory with its group; `baseline_K` is the known baseline of `baseline`."""
    if rewards_K.numel() == 0:
        return GroupAdvantages(rewards_K, rewards_K, torch.zeros_like(group_K, dtype=torch.bool))
    groups = int(group_K.max()) + 1
    size_G = rewards_K.new_zeros(groups).index_add(0, group_K, torch.ones_like(rewards_K))
    mean_G = rewards_K.new_zeros(groups).index_add(0, group_K, rewards_K) / size_G.clamp_min(1)
    size_K, mean_K = size_G[group_K], mean_G[group_K]
    if kind == "baseline":
        if baseline_K is None:
            raise ValueError("advantages by `baseline` need baseline_K, the baseline of each trajectory")
        advantages_K = rewards_K - baseline_K
        return GroupAdvantages(advantages_K, mean_K, advantages_K != 0)
    low_G = rewards_K.new_full((groups,), torch.inf).scatter_reduce(0, group_K, rewards_K, "amin")
    high_G = rewards_K.new_full((groups,), -torch.inf).scatter_reduce(0, group_K, rewards_K, "amax")
    scale_G = torch.maximum(low_G.abs(), high_G.abs()).clamp_min(1)
    signal_K = (high_G - low_G > TOLERANCE * scale_G)[group_K]
    centred_K = rewards_K - mean_K
    if kind == "mean_std":
        variance_G = rewards_K.new_zeros(groups).index_add(0, group_K, centred_K**2) / size_G.clamp_min(1)
        centred_K = centred_K / (variance_G.sqrt()[group_K] + STD_EPSILON)
    elif kind == "leave_one_out":
        centred_K = centred_K * size_K / (size_K - 1).clamp_min(1)
    return GroupAdvantages(torch.where(signal_K, centred_K, 0.0), mean_K, signal_K)
