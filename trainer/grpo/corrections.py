"""Corrections for tokens that another policy sampled: importance weights with a cap, and the mask of stale negatives.

With a correction the update is decoupled (Hilton et al. 2021, 2110.00641): the loss's own ratio is against a proximal
policy p close to n, and what separates p from the behaviour b goes into a weight v without gradient.

    token      v = exp(p − b)                     sequence   v = exp(sum over the sequence of (p − b))
    truncate   min(v, c)                          mask       v where v <= c, else 0

With one optimizer step per batch p equals n in value. Then decoupled PPO with truncated token weights, REINFORCE
with the weight min(r, c), and CISPO with the bounds [0, c] have the same gradient.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rollbus.trainer.grpo.ratios import ratio, sequence_product, sequence_sums

Correction = Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]


@dataclass(frozen=True, slots=True)
class ImportanceWeights:
    weights_N: Tensor
    """Without gradient."""
    held_N: Tensor
    """True where the cap was exceeded."""


def importance_weights(
    proximal_N: Tensor,
    behaviour_N: Tensor,
    sequence_N: Tensor,
    mask_N: Tensor,
    *,
    correction: Correction,
    cap: float,
) -> ImportanceWeights:
    """v per token; ones for `none`. Each token of a sequence gets its weight."""
    if correction == "none":
        return ImportanceWeights(torch.ones_like(behaviour_N), torch.zeros_like(mask_N))
    proximal_N = proximal_N.detach()
    if correction.startswith("token"):
        weights_N = ratio(proximal_N, behaviour_N)
    else:
        weights_N = sequence_product(proximal_N, behaviour_N, sequence_N, mask_N)
    held_N = weights_N > cap
    kept_N = weights_N.clamp_max(cap) if correction.endswith("truncate") else torch.where(held_N, 0.0, weights_N)
    return ImportanceWeights(kept_N, held_N & mask_N)


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
