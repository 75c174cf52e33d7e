"""Importance ratios: how much likelier a token, or a sequence, is under one policy than under another.

    token       r   = exp(n − b)
    sequence    s   = exp(mean over the sequence's tokens of (n − b))     GSPO, Zheng et al. 2025 (2507.18071)
    product     P   = exp(sum over the sequence's tokens of (n − b))      the true ratio of the sequence

All are held to exp(±20). `s` is not an importance weight (its mean is not 1) but has the scale of one token, so one
clip range serves answers of any length; `P` is one, and its variance grows with the length.
"""

import torch
from torch import Tensor

LOG_RATIO_BOUND = 20.0
"""exp(20) is far outside every clip range, and finite."""


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


def _exp(log_ratio_N: Tensor) -> Tensor:
    return torch.exp(log_ratio_N.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND))
