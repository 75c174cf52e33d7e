"""From losses of tokens to the loss of a step: sum(l · w) / D.

    token_mean        w = 1              D = N, the sampled tokens of the whole step       DAPO 2025 (2503.14476)
    trajectory_mean   w ~ 1 / L_k        D = N, weights of mean 1: every trajectory counts alike, as ART
    prompt_mean       w ~ 1 / L_g        D = N, weights of mean 1: every group counts alike, whatever its size
    constant          w = 1              D = sequences · a fixed number of tokens          Dr. GRPO (2503.20783)

L_k and L_g are the sampled tokens of the trajectory and of its group. D is always that of the step, never of a
micro-batch: a mean of means is another number. `trajectory_mean` favours short answers, `token_mean` long ones,
`constant` neither, and its gradient does not shrink as answers grow.
"""

from typing import Literal

Aggregation = Literal["token_mean", "trajectory_mean", "prompt_mean", "constant"]


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
