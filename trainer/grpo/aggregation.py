"""What a step takes over its whole batch: the loss, sum(l · w) / D, and the scale of advantages.

    token_mean        w = 1              D = N, the sampled tokens of the whole step       DAPO 2025 (2503.14476)
    trajectory_mean   w ~ 1 / L_k        D = N, weights of mean 1: every trajectory counts alike, as ART
    prompt_mean       w ~ 1 / L_g        D = N, weights of mean 1: every group counts alike, whatever its size
    constant          w = 1              D = sequences · a fixed number of tokens          Dr. GRPO (2503.20783)

L_k and L_g are the sampled tokens of the trajectory and of its group. D is always that of the step, never of a
micro-batch: a mean of means is another number. `trajectory_mean` favours short answers, `token_mean` long ones,
`constant` neither, and its gradient does not shrink as answers grow.

Advantages can be brought to the scale of the batch before: A / (std(R) + 1e-4), std over all rewards of the batch, with
N − 1. As TRL's `scale_rewards: batch` where the advantages are `mean` (Liu et al. 2025, 2508.08221). A group's own
deviation would blow near-equal rewards up to unit size. Here the batch is what trains, without groups that lack signal.
"""

import math
from collections.abc import Sequence
from typing import Literal

Aggregation = Literal["token_mean", "trajectory_mean", "prompt_mean", "constant"]
STD_FLOOR = 1e-4


def token_weight(aggregation: Aggregation, *, trajectory_tokens: int, group_tokens: int) -> float:
    """Weight of one token before the weights of the step are brought to mean 1."""
    if aggregation == "trajectory_mean":
        return 1.0 / max(trajectory_tokens, 1)
    return 1.0 / max(group_tokens, 1) if aggregation == "prompt_mean" else 1.0


def divisor(aggregation: Aggregation, *, tokens: int, sequences: int, constant_tokens: int | None) -> float:
    """Return D of the step; ValueError if `constant` lacks its constant."""
    if aggregation != "constant":
        return float(tokens)
    if constant_tokens is None:
        raise ValueError("aggregation `constant` needs aggregation_tokens, the tokens that a sequence counts as")
    return float(sequences * constant_tokens)


def batch_scale(rewards_K: Sequence[float]) -> float:
    """Return what every advantage of the batch is multiplied by; 1 / STD_FLOOR for rewards that are all equal."""
    mean = math.fsum(rewards_K) / len(rewards_K)
    squared = math.fsum((reward - mean) ** 2 for reward in rewards_K)
    return 1 / (math.sqrt(squared / max(len(rewards_K) - 1, 1)) + STD_FLOOR)
