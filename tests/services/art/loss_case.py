"""ART's own loss compared with ours on the same packed tensors, where ART is imported: its values and gradients."""

import json
from pathlib import Path
from typing import Any

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "cispo": ({}, {}),
    "cispo narrow": ({"epsilon": 0.5, "epsilon_high": 0.5}, {"ratio_min": 0.5, "ratio_max": 1.5}),
    "cispo sequence": ({"importance_sampling_level": "sequence"}, {"ratio_level": "sequence"}),
    "ppo": (
        {"ppo": True},
        {"loss": "ppo", "epsilon": 0.2, "epsilon_high": 0.2, "dual_clip": None},
    ),
    "ppo sequence": (
        {"ppo": True, "epsilon": 0.3, "epsilon_high": 0.4, "importance_sampling_level": "sequence"},
        {"loss": "ppo", "epsilon": 0.3, "epsilon_high": 0.4, "dual_clip": None, "ratio_level": "sequence"},
    ),
    "cispo with KL": ({"kl_penalty_coef": 0.3}, {}),
    "cispo truncated": (
        {"truncated_importance_sampling": 1.5, "precalculate_logprobs": True},
        {"importance_correction": "token_truncate", "importance_cap": 1.5},
    ),
    "ppo truncated": (
        {"ppo": True, "truncated_importance_sampling": 1.5, "precalculate_logprobs": True},
        {
            "loss": "ppo",
            "epsilon": 0.2,
            "epsilon_high": 0.2,
            "dual_clip": None,
            "importance_correction": "token_truncate",
            "importance_cap": 1.5,
        },
    ),
}
"""ART's options and ours that mean the same; ART's defaults are ours but for the dual clip."""


def compare(findings: str) -> None:
    """For each case the two losses and the largest difference of their gradients."""
    import torch
    from art.loss import AlignedLossInputs, loss_fn

    from rollbus.trainer.grpo.ratios import penalised_advantages
    from rollbus.trainer.grpo.step_loss import TokenBatch, policy_loss
    from rollbus.trainer.train_config import TrainConfig

    generator = torch.Generator().manual_seed(5)
    rows, length = 3, 12

    def uniform(low: float, high: float) -> Any:
        return torch.rand(rows, length, generator=generator, dtype=torch.float64) * (high - low) + low

    mask = uniform(0, 1) > 0.3
    groups = torch.arange(1, 7).repeat_interleave(6).view(rows, length)
    advantages = (torch.randn(8, generator=generator, dtype=torch.float64))[groups]
    current, behaviour, weights = uniform(-5, -0.1), uniform(-5, -0.1), uniform(0.5, 1.5)
    reference = uniform(-5, -0.1)
    proximal = current + uniform(-0.5, 0.5)
    figures_by_case: dict[str, dict[str, float]] = {}
    for name, (theirs, ours) in CASES.items():
        leaf, decoupled = current.clone().requires_grad_(), "precalculate_logprobs" in theirs
        inputs = AlignedLossInputs(
            assistant_mask=mask,
            old_logprobs=proximal if decoupled else behaviour,
            original_logprobs=behaviour if decoupled else None,
            advantages=advantages,
            weights=weights,
            group_ids=groups,
        )
        with_kl = "kl_penalty_coef" in theirs
        art_loss = loss_fn(inputs, leaf, reference if with_kl else None, None, theirs).policy_loss  # type: ignore[arg-type]
        (art_gradient,) = torch.autograd.grad(art_loss, leaf)
        leaf = current.clone().requires_grad_()
        mask_N, advantages_N = mask.view(-1), advantages.view(-1)
        if with_kl:
            advantages_N = penalised_advantages(
                advantages_N, leaf.view(-1), reference.view(-1), mask_N, coefficient=theirs["kl_penalty_coef"]
            )
        batch = TokenBatch(
            current_N=leaf.view(-1),
            behaviour_N=behaviour.view(-1),
            advantages_N=advantages_N,
            weights_N=weights.view(-1),
            sequence_N=groups.view(-1),
            mask_N=mask_N,
            proximal_N=proximal.view(-1),
        )
        our_loss = policy_loss(batch, TrainConfig(**ours), global_tokens=float(mask.sum())).loss
        (our_gradient,) = torch.autograd.grad(our_loss, leaf)
        figures_by_case[name] = {
            "theirs": float(art_loss),
            "ours": float(our_loss),
            "gradient_size": float(art_gradient.abs().max()),
            "gradient_difference": float((art_gradient - our_gradient).abs().max()),
        }
    Path(findings).write_text(json.dumps(figures_by_case), encoding="utf-8")
