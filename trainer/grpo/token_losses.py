"""The policy losses, per token, before weights, masks and sums: CISPO, PPO with dual clip, DPPO, and two unbounded.

At r = 1 all have the gradient −A with respect to n. Away from it they differ in what they do with a token that has
moved far: CISPO bounds its weight, PPO and DPPO give it no gradient, by ratio and by difference of probability;
importance sampling bounds nothing, and DRO pulls it back.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TokenLoss:
    loss_N: Tensor
    clipped_N: Tensor
    """True where a bound removed or limited the gradient."""


def cispo(current_N: Tensor, ratio_N: Tensor, advantages_N: Tensor, *, ratio_min: float, ratio_max: float) -> TokenLoss:
    """−sg(clip(r, min, max)) · A · n: every token keeps a gradient, its weight is bounded.

    Gradient with respect to n: −clip(r) · A. The value contains a log-prob and means nothing by itself.
    MiniMax-M1, 2025 (2506.13585), with ART's bounds [0, 5].
    """
    bounded_N = ratio_N.detach().clamp(ratio_min, ratio_max)
    clipped_N = (ratio_N < ratio_min) | (ratio_N > ratio_max)
    return TokenLoss(-bounded_N * advantages_N * current_N, clipped_N)


def ppo(
    ratio_N: Tensor, advantages_N: Tensor, *, epsilon: float, epsilon_high: float, dual_clip: float | None
) -> TokenLoss:
    """−min(r A, clip(r, 1 − ε, 1 + ε_high) A); for A < 0 at most −c A (dual clip).

    Gradient with respect to n: −r A where neither bound is active, else 0.
    Schulman et al. 2017 (1707.06347); dual clip, Ye et al. 2020 (1912.09729); ε_high, DAPO 2025 (2503.14476).
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


def dppo(
    current_N: Tensor, behaviour_N: Tensor, ratio_N: Tensor, advantages_N: Tensor, *, probability_delta: float
) -> TokenLoss:
    """−keep · A · r, where keep fails once the probability itself has moved by more than δ the way A pushes.

    keep = not (A > 0 and e^n − e^b > δ) and not (A <= 0 and e^n − e^b < −δ). A rare token may so change its ratio a
    lot, a frequent one only a little: the opposite of a bound on the ratio.
    Gradient with respect to n: −r A where kept, else 0. As prime-rl's default loss, without its KL term, which is
    `behaviour_kl` here.
    """
    moved_N = (current_N.exp() - behaviour_N.exp()).detach()
    left_N = torch.where(advantages_N > 0, moved_N > probability_delta, moved_N < -probability_delta)
    return TokenLoss(torch.where(left_N, 0.0, -ratio_N * advantages_N), left_N)


def importance_sampling(ratio_N: Tensor, advantages_N: Tensor) -> TokenLoss:
    """−r A, without any bound. Gradient with respect to n: −r A."""
    return TokenLoss(-ratio_N * advantages_N, torch.zeros_like(ratio_N, dtype=torch.bool))


def dro(current_N: Tensor, behaviour_N: Tensor, advantages_N: Tensor, *, beta: float) -> TokenLoss:
    """−(A n − β/2 (n − b)²): no ratio, but a pull towards the behaviour that grows with the distance.

    Gradient with respect to n: −A + β (n − b). Richemond et al. 2024 (2405.19107), with the advantage in place of the
    reward and its value, as Tinker's services have it.
    """
    moved_N = current_N - behaviour_N
    loss_N = 0.5 * beta * moved_N**2 - advantages_N * current_N
    return TokenLoss(loss_N, torch.zeros_like(current_N, dtype=torch.bool))
