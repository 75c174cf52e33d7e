"""Corrections for tokens that another policy sampled: importance weights within bounds, and masks of whole sequences.

With a correction the update is decoupled (Hilton et al. 2021, 2110.00641): the loss's own ratio is against a proximal
policy p close to n, and what separates p from the behaviour b goes into a weight v without gradient.

    token      v = exp(p − b)                     sequence   v = exp(sum over the sequence of (p − b))
    truncate   v held to [f, c]                   mask       v where f <= v <= c, else 0

Masking tokens on both sides is IcePop (Ling Team 2025, 2510.18855): f = 0.5, c = 5.

A mask of sequences keeps one whose measure lies within bounds, with r the ratio of its tokens:

    geometric_mean   exp(mean log r)              product    exp(sum log r)
    k1               mean of −log r               k3         mean of r − 1 − log r

With one optimizer step per batch p equals n in value. Then decoupled PPO with truncated token weights, REINFORCE
with the weight min(r, c), and CISPO with the bounds [0, c] have the same gradient.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rollbus.trainer.grpo.penalties import kl_k1, kl_k3
from rollbus.trainer.grpo.ratios import ratio, sequence_product, sequence_ratio, sequence_sums

Correction = Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
SequenceMask = Literal["geometric_mean", "product", "k1", "k3"]


@dataclass(frozen=True, slots=True)
class ImportanceWeights:
    weights_N: Tensor
    """Without gradient."""
    held_N: Tensor
    """True where a bound was exceeded."""


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
