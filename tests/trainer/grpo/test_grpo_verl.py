"""Weights, masks and advantages are verl's: the same numbers on the same tokens.

verl's own functions wrote them down by `tests/trainer/grpo/verl_masks.py`, with the version named in the file.
"""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rollbus.streams.stages.grouping.advantages import advantages
from rollbus.trainer.grpo.aggregation import batch_scale
from rollbus.trainer.grpo.ratios import far_sequences, importance_weights, sequence_ratio
from rollbus.trainer.grpo.step_loss import TokenBatch, policy_loss, step_metrics
from rollbus.trainer.train_config import TrainConfig
from tests.trainer.grpo.token_batches import gradient, whole_batch

FOLDER = Path(__file__).parent
VERL: dict[str, Any] = json.loads((FOLDER / "verl_masks.json").read_text(encoding="utf-8"))
TRL: dict[str, Any] = json.loads((FOLDER / "trl_losses.json").read_text(encoding="utf-8"))
WEIGHTS: dict[str, dict[str, Any]] = {
    "token, truncated": {"correction": "token_truncate", "cap": 2.0},
    "token, icepop": {"correction": "token_mask", "floor": 0.5, "cap": 5.0},
    "sequence, truncated": {"correction": "sequence_truncate", "cap": 2.0},
    "sequence, both sides": {"correction": "sequence_mask", "floor": 0.3, "cap": 3.0},
}
MASKS: dict[str, list[tuple[Any, tuple[float, float]]]] = {
    "geometric mean": [
        ("geometric_mean", (1 / 1.33, 1 / 0.75)),  # verl bounds the inverse ratio
        ("k1", (math.log(0.75), math.log(1.33))),  # and compares its logarithm, which is k1
    ],
    "product": [("product", (1 / 2.5, 1 / 0.4))],
    "k3": [("k3", (0.0, 0.2))],
}


def given(name: str) -> Tensor:
    return torch.tensor(VERL["inputs"][name], dtype=torch.float64)


def tokens() -> TokenBatch:
    """verl's rows, flat; padding left out."""
    mask = given("mask").bool()
    row_N = torch.arange(len(mask))[:, None].expand_as(mask)[mask]
    return whole_batch(given("current")[mask], given("behaviour")[mask], given("rewards")[row_N] + 0.5, row_N)


def flat(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[given("mask").bool()]


def test_every_case_of_verl_is_compared() -> None:
    assert VERL["weights"].keys() == WEIGHTS.keys()
    assert VERL["masks"].keys() == MASKS.keys()


@pytest.mark.parametrize("name", WEIGHTS)
def test_importance_weights_are_verls(name: str) -> None:
    batch = tokens()
    weights_N = importance_weights(
        batch.current_N, batch.behaviour_N, batch.sequence_N, batch.mask_N, **WEIGHTS[name]
    ).weights_N
    torch.testing.assert_close(weights_N, flat(VERL["weights"][name]), rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", MASKS)
def test_masks_of_sequences_are_verls_and_leave_them_out_of_the_gradient(name: str) -> None:
    batch, kept_N = tokens(), flat(VERL["masks"][name]).bool()
    assert bool(kept_N.any())
    assert not bool(kept_N.all())
    for measure, bounds in MASKS[name]:
        far_N = far_sequences(
            batch.current_N, batch.behaviour_N, batch.sequence_N, batch.mask_N, measure=measure, bounds=bounds
        )
        assert torch.equal(~far_N, kept_N)
        plain, masked = TrainConfig(), TrainConfig(sequence_mask=measure, sequence_mask_bounds=bounds)
        expected = torch.where(kept_N, gradient(batch, plain), 0.0)
        assert torch.equal(gradient(batch, masked), expected), "the divisor counts what is masked, as verl's"


def test_the_tensors_lie_on_both_sides_of_the_bounds() -> None:
    batch = tokens()
    ratio_N = sequence_ratio(batch.current_N, batch.behaviour_N, batch.sequence_N, batch.mask_N)
    assert bool((ratio_N < 1 / 1.33).any())
    assert bool((ratio_N > 1 / 0.75).any())
    dropped = flat(VERL["weights"]["token, icepop"]) == 0
    log_ratio_N = batch.current_N - batch.behaviour_N
    assert bool((log_ratio_N[dropped] < math.log(0.5)).any())


def test_a_mask_has_a_lower_bound_for_k3_too() -> None:
    """Sequences that have not moved at all teach most; this keeps only those that have."""
    batch = tokens()
    same = replace(batch, behaviour_N=batch.current_N)
    far_N = far_sequences(
        same.current_N, same.behaviour_N, same.sequence_N, same.mask_N, measure="k3", bounds=(0.01, 1.0)
    )
    assert bool(far_N.all())


def test_masked_sequences_are_counted() -> None:
    batch = tokens()
    settings = TrainConfig(sequence_mask="k3", sequence_mask_bounds=(0.0, 0.2))
    leaf = replace(batch, current_N=batch.current_N.clone().requires_grad_())
    report = step_metrics([policy_loss(leaf, settings, global_tokens=len(batch.mask_N))])
    kept_fraction = float(flat(VERL["masks"]["k3"]).mean())
    assert report["sequence_mask_fraction"] == pytest.approx(1 - kept_fraction)


def test_advantages_by_unbiased_deviation_are_verls_but_for_the_floor() -> None:
    """verl adds 1e-6 to the deviation where TRL and we add 1e-4; it gives a group of one its raw reward, we none."""
    rewards, groups = VERL["inputs"]["rewards"], VERL["inputs"]["groups"]
    for group in "ab":
        members = [reward for reward, name in zip(rewards, groups, strict=True) if name == group]
        theirs = [value for value, name in zip(VERL["advantages"], groups, strict=True) if name == group]
        deviation = torch.tensor(members, dtype=torch.float64).std().item()
        floors = (deviation + 1e-6) / (deviation + 1e-4)
        assert advantages(members, "unbiased_std") == pytest.approx([value * floors for value in theirs], rel=1e-12)
    assert advantages([0.3], "unbiased_std") == [0.0]


def test_advantages_by_the_batchs_deviation_are_trls() -> None:
    rewards, theirs = TRL["batch_std"]["rewards"], TRL["batch_std"]["advantages"]
    scale = batch_scale(rewards)
    ours = [advantage * scale for group in (rewards[:3], rewards[3:]) for advantage in advantages(group, "mean")]
    assert ours == pytest.approx(theirs, rel=5e-8)  # its factor N / (N − 1) is a float32
    assert math.isfinite(batch_scale([0.5]))


def test_an_unknown_kind_of_advantage_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no kind of advantage 'men'; there are mean, mean_std, unb"):
        advantages([0.0, 1.0], "men")
