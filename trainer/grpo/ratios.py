"""Two policies on the same tokens: ratios and KL between them, and the weights, masks and penalties made of these.

Ratios say how much likelier a token, or a sequence, is under one policy than under another:

    token       r   = exp(n − b)
    sequence    s   = exp(mean over the sequence's tokens of (n − b))     GSPO, Zheng et al. 2025 (2507.18071)
    product     P   = exp(sum over the sequence's tokens of (n − b))      the true ratio of the sequence

All are held to exp(±20). `s` is not an importance weight (its mean is not 1) but has the scale of one token, so one
clip range serves answers of any length; `P` is one, and its variance grows with the length.

KL, with x = f − n for a reference f: k1 = −x, k3 = e^x − x − 1 (Schulman, "Approximating KL divergence", 2020). Both
estimate KL(n‖f) on tokens that n sampled. As a reward, centred k1 has the gradient of the KL; k3 in the
loss is GRPO's, of low variance but biased in its gradient.

Corrections are for tokens that another policy sampled. With one the update is decoupled (Hilton et al. 2021,
2110.00641): the loss's own ratio is against a proximal policy p close to n, and what separates p from the behaviour b
goes into a weight v without gradient.

    token      v = exp(p − b)                     sequence   v = exp(sum over the sequence of (p − b))
    truncate   v held to [f, c]                   mask       v where f <= v <= c, else 0

Masking tokens on both sides is IcePop (Ling Team 2025, 2510.18855): f = 0.5, c = 5. With one optimizer step per batch p
equals n in value. Then decoupled PPO with truncated token weights, REINFORCE with the weight min(r, c), and CISPO with
the bounds [0, c] have the same gradient.

A mask of sequences keeps one whose measure lies within bounds, with r the ratio of its tokens:

    geometric_mean   exp(mean log r)              product    exp(sum log r)
    k1               mean of −log r               k3         mean of r − 1 − log r
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

LOG_RATIO_BOUND = 20.0
"""exp(20) is far outside every clip range, and finite."""

Correction = Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
SequenceMask = Literal["geometric_mean", "product", "k1", "k3"]


@dataclass(frozen=True, slots=True)
class ImportanceWeights:
    weights_N: Tensor
    """Without gradient."""
    held_N: Tensor
    """True where a bound was exceeded."""


def ratio(current_N: Tensor, behaviour_N: Tensor) -> Tensor:
    """r = exp(n − b) per token."""
    return _exp(current_N - behaviour_N)


def ratio_less_one(current_N: Tensor, behaviour_N: Tensor) -> Tensor:
    """r − 1, with all its digits where the two nearly agree and r itself is 1 but for rounding."""
    return torch.expm1((current_N - behaviour_N).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND))


def sequence_ratio(current_N: Tensor, behaviour_N: Tensor, sequence_N: Tensor, mask_N: Tensor) -> Tensor:
    """s of the token's sequence, at each of its tokens; the gradient goes through the mean."""
    sums_N, tokens_N = sequence_sums(current_N - behaviour_N, sequence_N, mask_N)
    return _exp(sums_N / tokens_N.clamp_min(1))


def sequence_product(current_N: Tensor, behaviour_N: Tensor, sequence_N: Tensor, mask_N: Tensor) -> Tensor:
    """P of the token's sequence, at each of its tokens."""
    sums_N, _ = sequence_sums(current_N - behaviour_N, sequence_N, mask_N)
    return _exp(sums_N)


def sequence_sums(values_N: Tensor, sequence_N: Tensor, mask_N: Tensor) -> tuple[Tensor, Tensor]:
    """Sum over the masked tokens of the sequence, and how many they are, at each of its tokens."""
    count = int(sequence_N.max()) + 1 if sequence_N.numel() else 0
    kept_N = torch.where(mask_N, values_N, 0.0)
    sums_S = kept_N.new_zeros(count).index_add(0, sequence_N, kept_N)
    tokens_S = kept_N.new_zeros(count).index_add(0, sequence_N, mask_N.to(kept_N.dtype))
    return sums_S[sequence_N], tokens_S[sequence_N]


def kl_k1(current_N: Tensor, reference_N: Tensor) -> Tensor:
    """n − f: unbiased for KL(n‖f), of either sign."""
    return current_N - reference_N


def kl_k3(current_N: Tensor, reference_N: Tensor) -> Tensor:
    """e^x − x − 1 with x = f − n: never negative, 0 where the two agree, and right where they nearly do."""
    difference_N = (reference_N - current_N).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return torch.expm1(difference_N) - difference_N


def behaviour_kl(current_N: Tensor, behaviour_N: Tensor) -> Tensor:
    """(n − b)²: keeps the policy near the one that sampled; prime-rl's, 1e-3 of it."""
    return (current_N - behaviour_N).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND) ** 2


def penalised_advantages(
    advantages_N: Tensor, current_N: Tensor, reference_N: Tensor, mask_N: Tensor, *, coefficient: float
) -> Tensor:
    """A + c · (mean k1 − k1): the KL penalty as a centred reward, over all tokens of the step (as ART does)."""
    k1_N = torch.where(mask_N, kl_k1(current_N.detach(), reference_N), 0.0)
    mean = k1_N.sum() / mask_N.sum().clamp_min(1)
    return advantages_N + torch.where(mask_N, coefficient * (mean - k1_N), 0.0)


def importance_weights(
    proximal_N: Tensor,
    behaviour_N: Tensor,
    sequence_N: Tensor,
    mask_N: Tensor,
    *,
    correction: Correction,
    cap: float,
    floor: float = 0.0,
) -> ImportanceWeights:
    """v per token; ones for `none`. Each token of a sequence gets its weight."""
    if correction == "none":
        return ImportanceWeights(torch.ones_like(behaviour_N), torch.zeros_like(mask_N))
    proximal_N = proximal_N.detach()
    if correction.startswith("token"):
        weights_N = ratio(proximal_N, behaviour_N)
    else:
        weights_N = sequence_product(proximal_N, behaviour_N, sequence_N, mask_N)
    held_N = (weights_N > cap) | (weights_N < floor)
    kept_N = weights_N.clamp(floor, cap) if correction.endswith("truncate") else torch.where(held_N, 0.0, weights_N)
    return ImportanceWeights(kept_N, held_N & mask_N)


def far_sequences(
    current_N: Tensor,
    behaviour_N: Tensor,
    sequence_N: Tensor,
    mask_N: Tensor,
    *,
    measure: SequenceMask,
    bounds: tuple[float, float],
) -> Tensor:
    """True for tokens of a sequence whose measure lies outside the bounds."""
    current_N = current_N.detach()
    if measure == "geometric_mean":
        measured_N = sequence_ratio(current_N, behaviour_N, sequence_N, mask_N)
    elif measure == "product":
        measured_N = sequence_product(current_N, behaviour_N, sequence_N, mask_N)
    else:
        estimates_N = (kl_k1 if measure == "k1" else kl_k3)(behaviour_N, current_N)
        sums_N, tokens_N = sequence_sums(estimates_N, sequence_N, mask_N)
        measured_N = sums_N / tokens_N.clamp_min(1)
    return mask_N & ((measured_N < bounds[0]) | (measured_N > bounds[1]))


def stale_negatives(
    current_N: Tensor,
    behaviour_N: Tensor,
    advantages_N: Tensor,
    sequence_N: Tensor,
    mask_N: Tensor,
    *,
    threshold: float,
) -> Tensor:
    """True for tokens of a sequence with A < 0 whose mean (b − n) exceeds the threshold.

    Such an answer has become unlikely already; pushing it down further only moves mass at random. DeepSeek-V3.2, 2025.
    """
    drift_N, tokens_N = sequence_sums(behaviour_N - current_N.detach(), sequence_N, mask_N)
    return mask_N & (advantages_N < 0) & (drift_N / tokens_N.clamp_min(1) > threshold)


def _exp(log_ratio_N: Tensor) -> Tensor:
    return torch.exp(log_ratio_N.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND))
