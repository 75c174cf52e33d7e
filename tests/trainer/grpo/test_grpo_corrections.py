"""Ratios of sequences, corrections for stale tokens, DPPO: equivalences, closed forms, every branch by hand."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollbus.trainer.grpo.ratios import importance_weights, sequence_product, sequence_ratio
from rollbus.trainer.grpo.step_loss import TokenBatch, policy_loss
from rollbus.trainer.train_config import TrainConfig
from tests.trainer.grpo.token_batches import close, gradient, one_sequence, part, token_batches, whole_batch

SETTINGS = [
    TrainConfig(),
    TrainConfig(loss="ppo"),
    TrainConfig(off_policy_mask_threshold=0.5),
    TrainConfig(loss="ppo", off_policy_mask_threshold=0.2),
    TrainConfig(ratio_level="sequence"),
    TrainConfig(loss="ppo", ratio_level="sequence"),
    TrainConfig(loss="ppo", importance_correction="token_truncate"),
    TrainConfig(loss="ppo", ratio_level="sequence", importance_correction="sequence_truncate"),
    TrainConfig(importance_correction="token_mask", behaviour_kl_coefficient=1e-3),
    TrainConfig(loss="dppo", behaviour_kl_coefficient=1e-3),
    TrainConfig(loss="dppo", ratio_level="sequence", importance_correction="sequence_mask"),
]
any_settings = st.sampled_from(SETTINGS)


@given(token_batches(), any_settings)
def test_masked_tokens_never_matter(batch: TokenBatch, settings: TrainConfig) -> None:
    junk = torch.where(batch.mask_N, 0.0, torch.nan)
    dirty = replace(
        batch,
        current_N=(batch.current_N + torch.where(batch.mask_N, 0.0, -50.0)).detach(),
        behaviour_N=batch.behaviour_N + junk,
        advantages_N=batch.advantages_N + junk,
        weights_N=batch.weights_N + junk,
    )
    assert close(gradient(dirty, settings)[batch.mask_N], gradient(batch, settings)[batch.mask_N])
    assert bool((gradient(dirty, settings)[~batch.mask_N] == 0).all())


@given(token_batches(), any_settings, st.randoms())
def test_the_order_of_tokens_never_matters(batch: TokenBatch, settings: TrainConfig, random: Any) -> None:
    order = list(range(len(batch.mask_N)))
    random.shuffle(order)
    at = torch.tensor(order)
    assert close(gradient(part(batch, at), settings), gradient(batch, settings)[at])


@given(token_batches(), any_settings)
def test_sequences_may_be_spread_over_micro_batches(batch: TokenBatch, settings: TrainConfig) -> None:
    """As long as each is whole in one, with the divisor of the step."""
    total = float(batch.mask_N.sum())
    whole = gradient(batch, settings)
    for sequence in set(batch.sequence_N.tolist()):
        at = (batch.sequence_N == sequence).nonzero()[:, 0]
        assert close(gradient(part(batch, at), settings, total), whole[at])


@given(token_batches(on_policy=True), any_settings)
def test_every_on_policy_loss_has_the_gradient_of_reinforce(batch: TokenBatch, settings: TrainConfig) -> None:
    """Per token, or per sequence where the ratio is the sequence's (equal weights: the mean spreads them)."""
    batch = replace(batch, weights_N=torch.ones_like(batch.weights_N))
    expected = -batch.advantages_N * batch.mask_N / batch.mask_N.sum()
    assert close(gradient(batch, settings), expected)


@given(token_batches(), st.sampled_from([0.5, 2.0, 5.0]))
def test_decoupled_ppo_reinforce_and_cispo_are_one_gradient(batch: TokenBatch, cap: float) -> None:
    """With one optimizer step per batch the PPO clip is never active, and the capped weight is all there is."""
    decoupled = TrainConfig(loss="ppo", importance_correction="token_truncate", importance_cap=cap)
    bounded = TrainConfig(loss="cispo", ratio_min=0.0, ratio_max=cap)
    weight = torch.exp(batch.current_N - batch.behaviour_N).detach().clamp(max=cap)
    reinforce = -weight * batch.advantages_N * batch.weights_N * batch.mask_N / batch.mask_N.sum()
    assert close(gradient(batch, decoupled), reinforce)
    assert close(gradient(batch, bounded), reinforce)


@given(token_batches(), st.sampled_from(["cispo", "ppo", "dppo"]))
def test_sequences_of_one_token_make_both_levels_equal(batch: TokenBatch, loss: Any) -> None:
    alone = replace(batch, sequence_N=torch.arange(len(batch.mask_N)))
    level = TrainConfig(loss=loss, ratio_level="sequence")
    assert close(gradient(alone, level), gradient(alone, TrainConfig(loss=loss)))
    for correction in ("truncate", "mask"):
        sequence_config, token_config = (
            level.model_copy(update={"importance_correction": f"{kind}_{correction}"}) for kind in ("sequence", "token")
        )
        assert close(gradient(alone, sequence_config), gradient(alone, token_config))


@given(token_batches(), st.sampled_from(["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]))
def test_an_importance_weight_is_the_behaviours_ratio_within_its_cap(batch: TokenBatch, correction: Any) -> None:
    importance = importance_weights(
        batch.current_N, batch.behaviour_N, batch.sequence_N, batch.mask_N, correction=correction, cap=2.0
    )
    difference = (batch.current_N - batch.behaviour_N).detach()
    for index in batch.mask_N.nonzero()[:, 0].tolist():
        same = (batch.sequence_N == batch.sequence_N[index]) & batch.mask_N
        exact = math.exp(float(difference[same].sum() if correction.startswith("sequence") else difference[index]))
        exact = min(max(exact, math.exp(-20)), math.exp(20))
        expected = exact if exact <= 2 else (2.0 if correction.endswith("truncate") else 0.0)
        assert float(importance.weights_N[index]) == pytest.approx(expected, rel=1e-9)
        assert bool(importance.held_N[index]) == (exact > 2)
    assert not importance.weights_N.requires_grad


@pytest.mark.parametrize(
    ("ratio", "advantage", "is_kept"),
    [(1.4, 1.0, True), (2.5, 1.0, False), (2.5, -1.0, True), (0.7, -1.0, True), (0.3, -1.0, False), (0.3, 1.0, True)],
)
def test_dppo_leaves_out_tokens_that_moved_too_far_in_their_direction(
    ratio: float, advantage: float, is_kept: bool
) -> None:
    """The current probability is e^-1 = 0.37, so the ratio tells how far it has moved."""
    batch, settings = one_sequence(ratio, advantage=advantage), TrainConfig(loss="dppo", probability_delta=0.2)
    moved = math.exp(-1) - math.exp(-1) / ratio
    assert (moved > 0.2 if advantage > 0 else moved < -0.2) != is_kept
    assert float(gradient(batch, settings)) == pytest.approx(-ratio * advantage if is_kept else 0.0)
    assert float(policy_loss(batch, settings, global_tokens=1.0).clipped) == (not is_kept)


def test_the_ratio_of_a_sequence_worked_by_hand() -> None:
    """Ratios 4 and 1: their geometric mean is 2, their product 4."""
    batch = one_sequence(4.0, 1.0)
    columns = (batch.current_N, batch.behaviour_N, batch.sequence_N, batch.mask_N)
    assert sequence_ratio(*columns).tolist() == pytest.approx([2.0, 2.0])
    assert sequence_product(*columns).tolist() == pytest.approx([4.0, 4.0])
    gspo = TrainConfig(loss="ppo", ratio_level="sequence", epsilon_high=1.5)
    assert gradient(batch, gspo).tolist() == pytest.approx([-1.0, -1.0])  # −s · A / N
    clipped = gradient(batch, gspo.model_copy(update={"epsilon_high": 0.5}))
    assert clipped.tolist() == [0.0, 0.0], "whole sequences are clipped"
    masked = TrainConfig(importance_correction="sequence_mask", importance_cap=3.0)
    assert gradient(batch, masked).tolist() == [0.0, 0.0]
    truncated = masked.model_copy(update={"importance_correction": "sequence_truncate"})
    assert gradient(batch, truncated).tolist() == pytest.approx([-1.5, -1.5])


def test_a_proximal_policy_of_its_own_takes_the_place_of_the_current_one() -> None:
    """p half-way between: PPO's ratio is n/p = 2, the weight p/b = 2."""
    batch = one_sequence(4.0)
    batch = replace(batch, proximal_N=batch.current_N.detach() - math.log(2))
    settings = TrainConfig(loss="ppo", epsilon_high=1.5, importance_correction="token_truncate", importance_cap=1.5)
    assert float(gradient(batch, settings)) == pytest.approx(-2 * 1.5)
    assert float(gradient(batch, settings.model_copy(update={"epsilon_high": 0.5}))) == 0.0


@given(token_batches(), any_settings)
def test_a_detached_loss_has_finite_gradients_at_any_ratio(batch: TokenBatch, settings: TrainConfig) -> None:
    """Values are finite whatever the ratios."""
    far = replace(batch, behaviour_N=batch.behaviour_N - 300)
    assert bool(torch.isfinite(gradient(far, settings)).all())


@pytest.mark.parametrize("loss", ["ppo", "dppo"])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("correction", ["none", "token_truncate", "sequence_mask"])
def test_autograd_agrees_with_finite_differences(loss: Any, level: Any, correction: Any) -> None:
    """Losses whose value carries their gradient; CISPO's value does not, by design."""
    generator = torch.Generator().manual_seed(3)
    current = -torch.rand(6, generator=generator, dtype=torch.float64) * 3 - 0.1
    batch = whole_batch(
        current,
        behaviour_N=current + torch.rand(6, generator=generator, dtype=torch.float64) * 0.1,
        advantages_N=torch.tensor([1.0, 1.0, 1.0, -0.5, -0.5, 2.0], dtype=torch.float64),
        weights_N=torch.rand(6, generator=generator, dtype=torch.float64) + 0.5,
        sequence_N=torch.tensor([0, 0, 0, 1, 1, 2]),
        reference_N=current - 0.3,
        proximal_N=current + 0.01,
    )
    penalties: dict[str, Any] = {"kl_estimator": "k3", "kl_coefficient": 0.2, "behaviour_kl_coefficient": 0.1}
    settings = TrainConfig(loss=loss, ratio_level=level, importance_correction=correction, **penalties)

    def value(leaf: torch.Tensor) -> torch.Tensor:
        return policy_loss(replace(batch, current_N=leaf), settings, global_tokens=6.0).loss

    assert torch.autograd.gradcheck(value, (current.clone().requires_grad_(),))


@pytest.mark.parametrize(("advantage", "tokens_are_kept"), [(0.1, [True, True]), (-0.1, [False, False])])
def test_a_stale_sequence_is_judged_as_a_whole_despite_a_token_penalty(
    advantage: float, tokens_are_kept: list[bool]
) -> None:
    """A penalty in the advantages may give tokens of one sequence either sign."""
    batch = one_sequence(0.3, 0.3, advantage=advantage)
    batch = replace(batch, advantages_N=torch.tensor([-0.2, 0.4], dtype=torch.float64), judged_N=batch.advantages_N)
    assert (gradient(batch, TrainConfig(off_policy_mask_threshold=0.5)) != 0).tolist() == tokens_are_kept
