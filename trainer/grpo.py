"""GRPO's loss on the sampled tokens of one optimizer step: pure functions on tensors, results with named fields.

Everything is flat: axis N runs over tokens, whatever rows they came from; `sequence_N` says which. All losses are
minimised. Advantages are given (grouping computed them, they stand in the Group record) and are not scaled here.

    n  current log-prob, carries the gradient       b  behaviour log-prob, as the sampler recorded it
    r  importance ratio exp(n − b)                  f  log-prob under the frozen reference policy
    A  advantage                                    w  weight of a token, mean 1        sg  stop-gradient

Sources: PPO clip, Schulman et al. 2017 (1707.06347); dual clip, Ye et al. 2020 (1912.09729); GRPO, Shao et al. 2024
(2402.03300); CISPO, MiniMax-M1 2025 (2506.13585), with ART's bounds [0, 5]; KL estimators k1 and k3, Schulman,
"Approximating KL divergence", 2020; sequence mask of stale negatives, DeepSeek-V3.2.

What differs from the GRPO paper: one optimizer step per batch against the *recorded* log-probs, so the ratio also
corrects staleness; the token mean is over the whole batch, not per answer; no KL term unless asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

import torch
from torch import Tensor

LOG_RATIO_BOUND = 20.0
"""exp(20) is far outside every clip range, and finite."""


@dataclass(frozen=True, slots=True)
class LossSettings:
    loss: Literal["cispo", "ppo"] = "cispo"
    ratio_min: float = 0.0
    ratio_max: float = 5.0
    epsilon: float = 0.2
    epsilon_high: float = 0.28
    dual_clip: float | None = 3.0
    kl_coefficient: float = 0.0
    """Of the k3 term in the loss; a k1 penalty is already in the advantages."""
    entropy_bonus: float = 0.0
    off_policy_mask_threshold: float | None = None


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Tokens the policy sampled, one entry each; `mask_N` false leaves an entry out of everything."""

    current_N: Tensor
    behaviour_N: Tensor
    advantages_N: Tensor
    weights_N: Tensor
    sequence_N: Tensor
    mask_N: Tensor
    reference_N: Tensor | None = None
    entropy_N: Tensor | None = None


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """Per token, before weights, masks and sums."""

    loss_N: Tensor
    clipped_N: Tensor
    """True where the clip range removed or bounded the gradient."""


@dataclass(frozen=True, slots=True)
class LossSums:
    """One micro-batch's share of the step; `combine` adds shares, `metrics` divides once by the global count."""

    loss: Tensor
    """Divided by the global token count already: backward() it as it is."""
    tokens: Tensor
    ratio: Tensor
    ratio_squared: Tensor
    ratio_max: Tensor
    clipped: Tensor
    masked_stale: Tensor
    mismatch_kl: Tensor
    log_ratio_max: Tensor
    log_ratio_absolute: Tensor
    entropy: Tensor
    reference_kl: Tensor


def ratio(current_N: Tensor, behaviour_N: Tensor) -> Tensor:
    """r = exp(n − b), with the log-ratio held to ±20."""
    return torch.exp((current_N - behaviour_N).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND))


def cispo(current_N: Tensor, ratio_N: Tensor, advantages_N: Tensor, *, ratio_min: float, ratio_max: float) -> TokenLoss:
    """−sg(clip(r, min, max)) · A · n: every token keeps a gradient, its weight is bounded.

    Gradient with respect to n: −clip(r) · A. The value contains a log-prob and means nothing by itself.
    """
    bounded_N = ratio_N.detach().clamp(ratio_min, ratio_max)
    clipped_N = (ratio_N < ratio_min) | (ratio_N > ratio_max)
    return TokenLoss(-bounded_N * advantages_N * current_N, clipped_N)


def ppo(
    ratio_N: Tensor, advantages_N: Tensor, *, epsilon: float, epsilon_high: float, dual_clip: float | None
) -> TokenLoss:
    """−min(r A, clip(r, 1 − ε, 1 + ε_high) A); for A < 0 at most −c A (dual clip).

    Gradient with respect to n: −r A where neither bound is active, else 0.
    """
    plain_N = -ratio_N * advantages_N
    bounded_N = -ratio_N.clamp(1 - epsilon, 1 + epsilon_high) * advantages_N
    loss_N = torch.maximum(plain_N, bounded_N)
    clipped_N = bounded_N > plain_N
    if dual_clip is not None:
        ceiling_N = -dual_clip * advantages_N
        over_N = (advantages_N < 0) & (loss_N > ceiling_N)
        loss_N = torch.where(over_N, ceiling_N, loss_N)
        clipped_N = clipped_N | over_N
    return TokenLoss(loss_N, clipped_N)


def kl_k1(current_N: Tensor, reference_N: Tensor) -> Tensor:
    """n − f: unbiased for KL(n‖f), of either sign."""
    return current_N - reference_N


def kl_k3(current_N: Tensor, reference_N: Tensor) -> Tensor:
    """e^x − x − 1 with x = f − n: never negative, 0 where the two agree."""
    difference_N = (reference_N - current_N).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return torch.exp(difference_N) - difference_N - 1


def penalised_advantages(
    advantages_N: Tensor, current_N: Tensor, reference_N: Tensor, mask_N: Tensor, *, coefficient: float
) -> Tensor:
    """A + c · (mean k1 − k1): the KL penalty as a centred reward, over all tokens of the step (as ART does)."""
    k1_N = torch.where(mask_N, kl_k1(current_N.detach(), reference_N), 0.0)
    mean = k1_N.sum() / mask_N.sum().clamp_min(1)
    return advantages_N + torch.where(mask_N, coefficient * (mean - k1_N), 0.0)


def stale_negatives(batch: TokenBatch, *, threshold: float) -> Tensor:
    """True for tokens of a sequence with A < 0 whose mean (b − n) exceeds the threshold.

    Such an answer has become unlikely already; pushing it down further only moves mass at random.
    """
    count = int(batch.sequence_N.max()) + 1 if batch.sequence_N.numel() else 0
    drift_N = torch.where(batch.mask_N, batch.behaviour_N - batch.current_N.detach(), 0.0)
    drift_S = torch.zeros(count, dtype=drift_N.dtype).to(drift_N).index_add(0, batch.sequence_N, drift_N)
    tokens_S = torch.zeros_like(drift_S).index_add(0, batch.sequence_N, batch.mask_N.to(drift_N.dtype))
    mean_N = (drift_S / tokens_S.clamp_min(1))[batch.sequence_N]
    return batch.mask_N & (batch.advantages_N < 0) & (mean_N > threshold)


def policy_loss(batch: TokenBatch, settings: LossSettings, *, global_tokens: float) -> LossSums:
    """sum(l · w) / global_tokens, and the sums behind the step's metrics.

    `global_tokens` counts the sampled tokens of the whole optimizer step: means of micro-batch means are wrong.
    """
    mask_N = batch.mask_N
    current_N = torch.where(mask_N, batch.current_N, 0.0)
    behaviour_N = torch.where(mask_N, batch.behaviour_N, 0.0)
    advantages_N = torch.where(mask_N, batch.advantages_N, 0.0)
    ratio_N = ratio(current_N, behaviour_N)
    if settings.loss == "cispo":
        token = cispo(current_N, ratio_N, advantages_N, ratio_min=settings.ratio_min, ratio_max=settings.ratio_max)
    else:
        token = ppo(
            ratio_N,
            advantages_N,
            epsilon=settings.epsilon,
            epsilon_high=settings.epsilon_high,
            dual_clip=settings.dual_clip,
        )
    loss_N = token.loss_N
    stale_N = torch.zeros_like(mask_N)
    if settings.off_policy_mask_threshold is not None:
        stale_N = stale_negatives(batch, threshold=settings.off_policy_mask_threshold)
        loss_N = torch.where(stale_N, 0.0, loss_N)
    reference_kl_N = torch.zeros_like(current_N)
    if batch.reference_N is not None:
        reference_kl_N = kl_k3(current_N, torch.where(mask_N, batch.reference_N, 0.0))
        if settings.kl_coefficient:
            loss_N = loss_N + settings.kl_coefficient * reference_kl_N
    entropy_N = torch.zeros_like(current_N) if batch.entropy_N is None else batch.entropy_N
    if settings.entropy_bonus:
        loss_N = loss_N - settings.entropy_bonus * entropy_N
    weights_N = torch.where(mask_N, batch.weights_N, 0.0)

    def total(values_N: Tensor) -> Tensor:
        return torch.where(mask_N, values_N.detach().double(), 0.0).sum()

    log_ratio_N = torch.where(mask_N, (current_N - behaviour_N).detach(), 0.0)
    fixed_ratio_N = ratio_N.detach()
    none = torch.zeros((), dtype=torch.double, device=current_N.device)
    return LossSums(
        loss=(torch.where(mask_N, loss_N, 0.0) * weights_N).sum() / global_tokens,
        tokens=total(torch.ones_like(current_N)),
        ratio=total(fixed_ratio_N),
        ratio_squared=total(fixed_ratio_N.double() ** 2),
        ratio_max=torch.where(mask_N, fixed_ratio_N, 0.0).max().double() if mask_N.numel() else none,
        clipped=total(token.clipped_N),
        masked_stale=total(stale_N),
        mismatch_kl=total(fixed_ratio_N - 1 - log_ratio_N),
        log_ratio_max=log_ratio_N.abs().max().double() if mask_N.numel() else none,
        log_ratio_absolute=total(log_ratio_N.abs()),
        entropy=total(entropy_N),
        reference_kl=total(reference_kl_N),
    )


def combine(shares: list[LossSums]) -> LossSums:
    """The sums of a step from those of its micro-batches."""
    values = {}
    for item in fields(LossSums):
        stacked = torch.stack([getattr(share, item.name).detach() for share in shares])
        values[item.name] = stacked.max() if item.name.endswith("_max") else stacked.sum()
    return LossSums(**values)


def metrics(sums: LossSums) -> dict[str, float]:
    """What a step reports of its loss; the gradient norm is added by whoever took it.

    The effective sample size is (sum r)² / (N · sum r²): 1 on-policy, falling as few tokens come to dominate.
    """
    tokens = max(float(sums.tokens), 1.0)
    squared = float(sums.ratio_squared)
    return {
        "loss": float(sums.loss),
        "tokens_trained": float(sums.tokens),
        "ratio_mean": float(sums.ratio) / tokens,
        "ratio_max": float(sums.ratio_max),
        "clip_fraction": float(sums.clipped) / tokens,
        "stale_mask_fraction": float(sums.masked_stale) / tokens,
        "mismatch_kl": float(sums.mismatch_kl) / tokens,
        "logprob_difference_mean": float(sums.log_ratio_absolute) / tokens,
        "logprob_difference_max": float(sums.log_ratio_max),
        "effective_sample_size": float(sums.ratio) ** 2 / (tokens * squared) if squared else 0.0,
        "entropy": float(sums.entropy) / tokens,
        "reference_kl": float(sums.reference_kl) / tokens,
    }
