"""One micro-batch's share of a step: the chosen loss, its corrections and penalties, and the sums behind the metrics.

The order: ratio (against the behaviour, or with a correction against the proximal policy) → loss per token →
importance weight → masks of sequences → penalties → weights, sum, divisor of the step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from rollbus.trainer.grpo import ratios
from rollbus.trainer.grpo.token_losses import TokenLoss, cispo, dppo, dro, importance_sampling, ppo
from rollbus.trainer.train_config import TrainConfig


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Tokens the policy sampled, one entry each; `mask_N` false leaves an entry out of everything."""

    current_N: Tensor
    behaviour_N: Tensor
    advantages_N: Tensor
    weights_N: Tensor
    sequence_N: Tensor
    """All tokens of a sequence are in one batch."""
    mask_N: Tensor
    reference_N: Tensor | None = None
    entropy_N: Tensor | None = None
    proximal_N: Tensor | None = None
    """For corrections; None takes the current policy, which it is when a batch is one optimizer step."""
    judged_N: Tensor | None = None
    """Advantages before any penalty, by whose sign stale sequences are left out; None takes those above."""


@dataclass(frozen=True, slots=True)
class LossSums:
    """One micro-batch's share of the step; `step_metrics` adds shares, and divides once by the global count."""

    loss: Tensor
    """Divided by the divisor of the step already: backward() it as it is."""
    tokens: Tensor
    ratio: Tensor
    ratio_squared: Tensor
    ratio_max: Tensor
    clipped: Tensor
    masked_stale: Tensor
    masked_far: Tensor
    mismatch_kl: Tensor
    log_ratio_max: Tensor
    log_ratio_absolute: Tensor
    entropy: Tensor
    reference_kl: Tensor


def policy_loss(batch: TokenBatch, settings: TrainConfig, *, global_tokens: float) -> LossSums:
    """sum(l · w) / global_tokens, and the sums behind the step's metrics.

    `global_tokens` is the divisor of the whole optimizer step (see `aggregation`): a mean of means is another number.
    """
    batch = _without_junk(batch)
    mask_N, current_N, behaviour_N = batch.mask_N, batch.current_N, batch.behaviour_N
    token = corrected_loss(batch, settings)
    loss_N = token.loss_N
    stale_N = torch.zeros_like(mask_N)
    if settings.off_policy_mask_threshold is not None:
        stale_N = ratios.stale_negatives(
            current_N,
            behaviour_N,
            batch.advantages_N if batch.judged_N is None else batch.judged_N,
            batch.sequence_N,
            mask_N,
            threshold=settings.off_policy_mask_threshold,
        )
        loss_N = torch.where(stale_N, 0.0, loss_N)
    far_N = torch.zeros_like(mask_N)
    if settings.sequence_mask != "none" and settings.sequence_mask_bounds is not None:
        far_N = ratios.far_sequences(
            current_N,
            behaviour_N,
            batch.sequence_N,
            mask_N,
            measure=settings.sequence_mask,
            bounds=settings.sequence_mask_bounds,
        )
        loss_N = torch.where(far_N, 0.0, loss_N)
    reference_kl_N = torch.zeros_like(current_N)
    if batch.reference_N is not None:
        reference_kl_N = ratios.kl_k3(current_N, batch.reference_N)
        if settings.kl_coefficient and settings.kl_estimator == "k3":  # k1 is in the advantages
            loss_N = loss_N + settings.kl_coefficient * reference_kl_N
    if settings.behaviour_kl_coefficient:
        loss_N = loss_N + settings.behaviour_kl_coefficient * ratios.behaviour_kl(current_N, behaviour_N)
    entropy_N = torch.zeros_like(current_N) if batch.entropy_N is None else batch.entropy_N
    if settings.entropy_bonus:
        loss_N = loss_N - settings.entropy_bonus * entropy_N
    loss = (torch.where(mask_N, loss_N, 0.0) * batch.weights_N).sum() / global_tokens
    return _sums(batch, loss, token.clipped_N, stale_N, far_N, entropy_N, reference_kl_N)


def corrected_loss(batch: TokenBatch, settings: TrainConfig) -> TokenLoss:
    """The chosen loss per token, times the importance weight where a correction is asked for."""
    current_N = batch.current_N
    if settings.importance_correction == "none":
        return _token_loss(batch, batch.behaviour_N, settings)
    proximal_N = current_N.detach() if batch.proximal_N is None else batch.proximal_N
    token = _token_loss(batch, proximal_N, settings)
    importance = ratios.importance_weights(
        proximal_N,
        batch.behaviour_N,
        batch.sequence_N,
        batch.mask_N,
        correction=settings.importance_correction,
        cap=settings.importance_cap,
        floor=settings.importance_floor,
    )
    return TokenLoss(token.loss_N * importance.weights_N, token.clipped_N | importance.held_N)


def _token_loss(batch: TokenBatch, anchor_N: Tensor, settings: TrainConfig) -> TokenLoss:
    """The loss with its ratio against `anchor_N`; dppo measures its move from the behaviour in either case."""
    current_N, advantages_N = batch.current_N, batch.advantages_N
    if settings.ratio_level == "token":
        ratio_N = ratios.ratio(current_N, anchor_N)
    else:
        ratio_N = ratios.sequence_ratio(current_N, anchor_N, batch.sequence_N, batch.mask_N)
    if settings.loss == "cispo":
        return cispo(current_N, ratio_N, advantages_N, ratio_min=settings.ratio_min, ratio_max=settings.ratio_max)
    if settings.loss == "dppo":
        return dppo(current_N, batch.behaviour_N, ratio_N, advantages_N, probability_delta=settings.probability_delta)
    if settings.loss == "importance_sampling":
        return importance_sampling(ratio_N, advantages_N)
    if settings.loss == "dro":
        return dro(current_N, batch.behaviour_N, advantages_N, beta=settings.dro_beta)
    return ppo(
        ratio_N,
        advantages_N,
        epsilon=settings.epsilon,
        epsilon_high=settings.epsilon_high,
        dual_clip=settings.dual_clip,
    )


def _without_junk(batch: TokenBatch) -> TokenBatch:
    """Zero where masked, so that junk there (NaN for instance) reaches neither value nor gradient."""

    def cleaned(values_N: Tensor) -> Tensor:
        return torch.where(batch.mask_N, values_N, 0.0)

    return replace(
        batch,
        current_N=cleaned(batch.current_N),
        behaviour_N=cleaned(batch.behaviour_N),
        advantages_N=cleaned(batch.advantages_N),
        weights_N=cleaned(batch.weights_N),
        reference_N=None if batch.reference_N is None else cleaned(batch.reference_N),
        proximal_N=None if batch.proximal_N is None else cleaned(batch.proximal_N),
        judged_N=None if batch.judged_N is None else cleaned(batch.judged_N),
    )


def _sums(
    batch: TokenBatch,
    loss: Tensor,
    clipped_N: Tensor,
    stale_N: Tensor,
    far_N: Tensor,
    entropy_N: Tensor,
    reference_kl_N: Tensor,
) -> LossSums:
    """Ratios are reported per token against the behaviour, whatever the loss made of them."""
    mask_N = batch.mask_N

    def total(values_N: Tensor) -> Tensor:
        return torch.where(mask_N, values_N.detach().double(), 0.0).sum()

    log_ratio_N = (batch.current_N - batch.behaviour_N).detach()
    ratio_N = ratios.ratio(batch.current_N, batch.behaviour_N).detach()
    none = torch.zeros((), dtype=torch.double, device=mask_N.device)
    return LossSums(
        loss=loss,
        tokens=total(torch.ones_like(ratio_N)),
        ratio=total(ratio_N),
        ratio_squared=total(ratio_N.double() ** 2),
        ratio_max=torch.where(mask_N, ratio_N, 0.0).max().double() if mask_N.numel() else none,
        clipped=total(clipped_N),
        masked_stale=total(stale_N),
        masked_far=total(far_N),
        mismatch_kl=total(ratios.ratio_less_one(batch.current_N, batch.behaviour_N) - log_ratio_N),
        log_ratio_max=log_ratio_N.abs().max().double() if mask_N.numel() else none,
        log_ratio_absolute=total(log_ratio_N.abs()),
        entropy=total(entropy_N),
        reference_kl=total(reference_kl_N),
    )


def step_metrics(shares: Sequence[LossSums]) -> dict[str, float]:
    """What a step reports of its loss, from the shares of its micro-batches; the caller adds the gradient norm.

    The effective sample size is (sum r)² / (N · sum r²): 1 on-policy, falling as few tokens come to dominate.
    """
    sums = _combine(shares)
    tokens = max(float(sums.tokens), 1.0)
    squared = float(sums.ratio_squared)
    return {
        "loss": float(sums.loss),
        "tokens_trained": float(sums.tokens),
        "ratio_mean": float(sums.ratio) / tokens,
        "ratio_max": float(sums.ratio_max),
        "clip_fraction": float(sums.clipped) / tokens,
        "stale_mask_fraction": float(sums.masked_stale) / tokens,
        "sequence_mask_fraction": float(sums.masked_far) / tokens,
        "mismatch_kl": float(sums.mismatch_kl) / tokens,
        "logprob_difference_mean": float(sums.log_ratio_absolute) / tokens,
        "logprob_difference_max": float(sums.log_ratio_max),
        "effective_sample_size": float(sums.ratio) ** 2 / (tokens * squared) if squared else 0.0,
        "entropy": float(sums.entropy) / tokens,
        "reference_kl": float(sums.reference_kl) / tokens,
    }


def _combine(shares: Sequence[LossSums]) -> LossSums:
    """The sums of a step from those of its micro-batches."""
    values = {}
    for item in fields(LossSums):
        stacked = torch.stack([getattr(share, item.name).detach() for share in shares])
        values[item.name] = stacked.max() if item.name.endswith("_max") else stacked.sum()
    return LossSums(**values)
