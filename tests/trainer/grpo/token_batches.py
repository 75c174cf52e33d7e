"""Random token batches for tests of the loss, and its gradient with respect to the current log-probs."""

from dataclasses import replace

import torch
from hypothesis import strategies as st
from torch import Tensor

from rollbus.trainer.grpo.aggregation import Aggregation, token_weight
from rollbus.trainer.grpo.step_loss import TokenBatch, policy_loss
from rollbus.trainer.train_config import TrainConfig

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
    loss = policy_loss(replace(batch, current_N=leaf), settings, global_tokens=count).loss
    (gradient_N,) = torch.autograd.grad(loss, leaf)
    return gradient_N


def close(first: Tensor, second: Tensor) -> bool:
    return torch.allclose(first, second, rtol=1e-9, atol=1e-12)


def part(batch: TokenBatch, at: Tensor | slice) -> TokenBatch:
    """These of its tokens, in this order."""
    return replace(batch, **{name: getattr(batch, name)[at] for name in NAMES})


def whole_batch(
    current_N: Tensor, behaviour_N: Tensor, advantages_N: Tensor, sequence_N: Tensor, **more: Tensor
) -> TokenBatch:
    """Tokens of which all count, and alike unless `more` has their weights."""
    alike = {"weights_N": torch.ones_like(behaviour_N), "mask_N": torch.ones_like(behaviour_N, dtype=torch.bool)}
    return TokenBatch(current_N, behaviour_N, advantages_N, sequence_N=sequence_N, **(alike | more))


def one_sequence(*ratios: float, advantage: float = 1.0) -> TokenBatch:
    """Tokens with these ratios; each has the probability e^-1 now."""
    current_N = torch.full((len(ratios),), -1.0, dtype=torch.float64)
    behaviour_N = current_N - torch.tensor(ratios, dtype=torch.float64).log()
    advantages_N = torch.full_like(current_N, advantage)
    return whole_batch(
        current_N.requires_grad_(), behaviour_N, advantages_N, torch.zeros(len(ratios), dtype=torch.long)
    )


def token_weights(aggregation: Aggregation, trajectory_N: Tensor, group_N: Tensor) -> Tensor:
    """`token_weight` of all tokens of a step, brought to mean 1."""
    counts = (torch.bincount(ids_N)[ids_N].tolist() for ids_N in (trajectory_N, group_N))
    weights = [
        token_weight(aggregation, trajectory_tokens=trajectory, group_tokens=group)
        for trajectory, group in zip(*counts, strict=True)
    ]
    weights_N = torch.tensor(weights, dtype=torch.float64)
    return weights_N / weights_N.mean()
