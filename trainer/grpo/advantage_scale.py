"""Advantages on the scale of a whole batch: A / (std(R) + 1e-4), std over all rewards of the batch, with N − 1.

As TRL's `scale_rewards: batch` where the advantages are `mean` (Liu et al. 2025, 2508.08221). A group's own
deviation would blow near-equal rewards up to unit size. Here the batch is what trains, without groups that lack signal.
"""

import math
from collections.abc import Sequence

STD_FLOOR = 1e-4


def reward_scale(kind: str, rewards_K: Sequence[float]) -> float:
    """Return what advantages by rewards are multiplied by, for a setting of `advantage_scale`."""
    return batch_scale(rewards_K) if kind == "batch_std" else 1.0


def batch_scale(rewards_K: Sequence[float]) -> float:
    """Return what every advantage of the batch is multiplied by; 1 / STD_FLOOR for rewards that are all equal."""
    mean = math.fsum(rewards_K) / len(rewards_K)
    squared = math.fsum((reward - mean) ** 2 for reward in rewards_K)
    return 1 / (math.sqrt(squared / max(len(rewards_K) - 1, 1)) + STD_FLOOR)
