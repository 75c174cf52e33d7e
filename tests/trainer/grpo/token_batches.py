"""Random token batches for tests of the loss, and its gradient with respect to the current log-probs."""

import math
from dataclasses import replace

import torch
from hypothesis import strategies as st
from torch import Tensor

from rollbus.trainer import grpo
from rollbus.trainer.backends.protocol import TrainConfig
from rollbus.trainer.grpo import TokenBatch
from rollbus.trainer.grpo.aggregation import Aggregation

NAMES = ("current_N", "behaviour_N", "advantages_N", "weights_N", "sequence_N", "mask_N")
"""What has an entry per token."""


@st.composite
def token_batches(draw: st.DrawFn, on_policy: bool = False) -> TokenBatch:
    """Up to 40 tokens of up to 5 sequences, some masked; ratios far from 1 unless `on_policy`."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    tokens, sequences = draw(st.integers(1, 40)), draw(st.integers(1, 5))

    def uniform(low: float, high: float) -> Tensor:
        return torch.rand(tokens, generator=generator, dtype=torch.float64) * (high - low) + low

    sequence_N = torch.randint(0, sequences, (tokens,), generator=generator)
    advantage_S = torch.randn(sequences, generator=generator, dtype=torch.float64)
    current_N = uniform(-6, 0)
    mask_N = uniform(0, 1) > 0.3
    mask_N[0] = True
    return TokenBatch(
        current_N=current_N.clone().requires_grad_(),
        behaviour_N=current_N if on_policy else current_N + uniform(-3, 3),
        advantages_N=advantage_S[sequence_N],
        weights_N=uniform(0.2, 2),
        sequence_N=sequence_N,
        mask_N=mask_N,
    )


def gradient(batch: TokenBatch, settings: TrainConfig, tokens: float | None = None) -> Tensor:
    leaf = batch.current_N.detach().clone().requires_grad_()
    count = float(batch.mask_N.sum()) if tokens is None else tokens
    loss = grpo.policy_loss(replace(batch, current_N=leaf), settings, global_tokens=count).loss
    (found,) = torch.autograd.grad(loss, leaf)
    return found


def close(first: Tensor, second: Tensor) -> bool:
    return torch.allclose(first, second, rtol=1e-9, atol=1e-12)


def part(batch: TokenBatch, at: Tensor | slice) -> TokenBatch:
    """These of its tokens, in this order."""
    return replace(batch, **{name: getattr(batch, name)[at] for name in NAMES})


def one_token(ratio: float, advantage: float) -> TokenBatch:
    current = torch.tensor([-1.0], dtype=torch.float64)
    return TokenBatch(
        current_N=current.clone().requires_grad_(),
        behaviour_N=current - math.log(ratio),
        advantages_N=torch.tensor([advantage], dtype=torch.float64),
        weights_N=torch.ones(1, dtype=torch.float64),
        sequence_N=torch.zeros(1, dtype=torch.long),
        mask_N=torch.ones(1, dtype=torch.bool),
    )


def token_weights(aggregation: Aggregation, trajectory_N: Tensor, group_N: Tensor, *, dtype: torch.dtype) -> Tensor:
    """`grpo.token_weight` for all tokens of a step at once, of mean 1."""
    if aggregation == "trajectory_mean":
        weights_N = 1.0 / torch.bincount(trajectory_N)[trajectory_N].to(dtype)
    elif aggregation == "prompt_mean":
        weights_N = 1.0 / torch.bincount(group_N)[group_N].to(dtype)
    else:
        weights_N = torch.ones(len(trajectory_N), dtype=dtype)
    return weights_N / weights_N.mean() if len(weights_N) else weights_N
