"""Choose next tokens from logits: temperature, nucleus, and one uniform number per row.

The number comes from the request's own seeded generator, so an answer does not depend on what else is in the batch
(up to the rounding of batched arithmetic). Log-probs are those of the unmodified model (`raw`: temperature 1), or of
the distribution at the request's temperature (`processed`), both before top_p: what the trainer recomputes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rollbus.trainer.backends.model_settings import LEAST_TEMPERATURE, LogprobsMode


@dataclass(frozen=True, slots=True)
class SampledChoice:
    token_ids_B: Tensor
    logprobs_B: Tensor
    logprobs_B_V: Tensor


def choose(
    logits_B_V: Tensor,
    temperatures_B: Tensor,
    top_p_B: Tensor,
    uniforms_B: Tensor,
    *,
    nucleus: bool,
    mode: LogprobsMode = "raw",
) -> SampledChoice:
    """Sample by inverting the cumulative distribution at `uniforms_B`; `nucleus` says whether any top_p is below 1."""
    greedy_B = temperatures_B < LEAST_TEMPERATURE
    divisors_B = torch.where(greedy_B, 1.0, temperatures_B)
    scaled_B_V = torch.log_softmax(logits_B_V / divisors_B[:, None], dim=-1)
    is_asked = mode == "processed" or bool((divisors_B == 1).all())
    logprobs_B_V = scaled_B_V if is_asked else torch.log_softmax(logits_B_V, dim=-1)
    probabilities_B_V = scaled_B_V.exp()
    if nucleus:
        probabilities_B_V = _nucleus(probabilities_B_V.double(), top_p_B)
    cumulative_B_V = probabilities_B_V.cumsum(dim=-1, dtype=torch.float64)
    targets_B_1 = uniforms_B[:, None] * cumulative_B_V[:, -1:]
    sampled_B = torch.searchsorted(cumulative_B_V, targets_B_1, right=True)[:, 0]  # [B]
    sampled_B = sampled_B.clamp_max(logits_B_V.shape[-1] - 1)
    token_ids_B = torch.where(greedy_B, logits_B_V.argmax(dim=-1), sampled_B) if greedy_B.any() else sampled_B
    return SampledChoice(token_ids_B, logprobs_B_V.gather(1, token_ids_B[:, None])[:, 0], logprobs_B_V)


def _nucleus(probabilities_B_V: Tensor, top_p_B: Tensor) -> Tensor:
    """Zero all but the smallest set of most probable tokens whose mass reaches top_p."""
    sorted_B_V, order_B_V = probabilities_B_V.sort(dim=-1, descending=True, stable=True)
    before_B_V = sorted_B_V.cumsum(dim=-1) - sorted_B_V
    kept_B_V = torch.where(before_B_V < top_p_B[:, None], sorted_B_V, 0.0)
    return torch.zeros_like(probabilities_B_V).scatter(1, order_B_V, kept_B_V)
