"""Estimates of how far the policy is from another, and the penalties made of them.

With x = f − n for a reference f: k1 = −x, k3 = e^x − x − 1 (Schulman, "Approximating KL divergence", 2020). Both
estimate KL(n‖f) on tokens that n sampled. As a reward, centred k1 has the gradient of the KL; k3 in the
loss is GRPO's, of low variance but biased in its gradient.
"""

import torch
from torch import Tensor

from rollbus.trainer.grpo.ratios import LOG_RATIO_BOUND


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
