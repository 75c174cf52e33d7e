"""With TRL's settings our loss is TRL's: the same value and gradient on the same tokens.

The numbers are those of TRL's own code, written down by `trl_losses.py` with the version named in
the file; `make bench-model` computes them again, in TRL's environment, and compares.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rollbus.trainer.grpo.aggregation import divisor
from rollbus.trainer.grpo.step_loss import policy_loss
from rollbus.trainer.train_config import TrainConfig
from tests.trainer.grpo.token_batches import token_weights, whole_batch

TRL: dict[str, Any] = json.loads((Path(__file__).parent / "trl_losses.json").read_text(encoding="utf-8"))
PPO: dict[str, Any] = {"loss": "ppo", "epsilon": 0.2, "epsilon_high": 0.2, "dual_clip": None}

SAME: dict[str, tuple[dict[str, Any], str]] = {
    "dapo": (PPO, "token_mean"),
    "dapo, clip higher": (PPO | {"epsilon_high": 0.28}, "token_mean"),
    "dapo with KL": (PPO | {"kl_estimator": "k3", "kl_coefficient": 0.3}, "token_mean"),
    "dapo, stale negatives masked": (PPO | {"off_policy_mask_threshold": 0.5}, "token_mean"),
    "dapo, entropy bonus": (PPO | {"entropy_bonus": 0.05}, "token_mean"),
    "bnpo": (PPO, "token_mean"),
    "grpo": (PPO, "trajectory_mean"),
    "dr_grpo": (PPO, "constant"),
    "cispo": ({}, "token_mean"),
    "cispo, narrow": ({"ratio_max": 1.5}, "token_mean"),
    "gspo": (PPO | {"ratio_level": "sequence"}, "trajectory_mean"),
    "gspo by tokens": (PPO | {"ratio_level": "sequence", "epsilon_high": 0.4}, "token_mean"),
}
"""TRL's case → our settings and aggregation."""


def given(name: str) -> Tensor:
    return torch.tensor(TRL["inputs"][name], dtype=torch.float64)


def ours(settings: TrainConfig, aggregation: Any) -> tuple[float, Tensor]:
    """Our loss and its gradient, back in TRL's rows."""
    current = given("current")
    mask = (given("completion_mask") * given("sampled_mask")).bool()
    row_N = torch.arange(len(current))[:, None].expand_as(current)[mask]
    leaf = current.clone().requires_grad_()
    batch = whole_batch(
        leaf[mask],
        behaviour_N=given("behaviour")[mask],
        advantages_N=given("advantages")[row_N],
        weights_N=token_weights(aggregation, row_N, row_N),
        sequence_N=row_N,
        reference_N=given("reference")[mask],
        entropy_N=given("entropy")[mask],
    )
    whole = divisor(
        aggregation, tokens=len(row_N), sequences=len(current), constant_tokens=TRL["max_completion_length"]
    )
    loss = policy_loss(batch, settings, global_tokens=whole).loss
    (gradient,) = torch.autograd.grad(loss, leaf)
    return float(loss.detach()), gradient


def test_every_case_of_trl_is_compared() -> None:
    assert SAME.keys() == TRL["cases"].keys()


@pytest.mark.parametrize("name", SAME)
def test_loss_and_gradient_equal_those_of_trls_own_code(name: str) -> None:
    changed, aggregation = SAME[name]
    loss, gradient = ours(TrainConfig(**changed), aggregation)
    case = TRL["cases"][name]
    assert loss == pytest.approx(case["loss"], rel=1e-12)
    theirs = torch.tensor(case["gradient"], dtype=torch.float64)
    assert float(theirs.abs().max()) > 0.01
    torch.testing.assert_close(gradient, theirs, rtol=0, atol=1e-13)


def test_the_tensors_reach_every_bound() -> None:
    """Without ratios beyond every bound, and sequences on both sides of the mask, agreement would say little."""
    mask = (given("completion_mask") * given("sampled_mask")).bool()
    log_ratio = (given("current") - given("behaviour"))[mask]
    advantages = given("advantages")[:, None].expand_as(given("current"))[mask]
    for bound in (torch.log(torch.tensor([0.8, 1.28, 1.5, 5.0], dtype=torch.float64))).tolist():
        assert bool((log_ratio < bound).any())
        assert bool((log_ratio > bound).any())
    assert bool((advantages[log_ratio > 0.25] > 0).any())
    assert bool((advantages[log_ratio < -0.22] < 0).any())
    plain, masked = TRL["cases"]["dapo"], TRL["cases"]["dapo, stale negatives masked"]
    assert plain["gradient"] != masked["gradient"]
