"""The loss: micro-batches add up, estimates of the divergence agree, and cases worked by hand."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollbus.trainer.grpo.ratios import kl_k1, kl_k3, penalised_advantages, stale_negatives
from rollbus.trainer.grpo.step_loss import TokenBatch, policy_loss, step_metrics
from rollbus.trainer.grpo.token_losses import ppo
from rollbus.trainer.train_config import TrainConfig
from tests.trainer.grpo.token_batches import gradient, one_sequence, part, token_batches, whole_batch

CISPO = TrainConfig()
PPO = TrainConfig(loss="ppo")


@given(token_batches(), st.integers(0, 40), st.sampled_from([CISPO, PPO]))
def test_micro_batches_add_up_to_the_whole_by_the_global_count(
    batch: TokenBatch, cut: int, settings: TrainConfig
) -> None:
    total = float(batch.mask_N.sum())
    parts = [part(batch, at) for at in (slice(cut), slice(cut, None))]
    whole = policy_loss(batch, settings, global_tokens=total)
    shares = [policy_loss(part, settings, global_tokens=total) for part in parts if len(part.mask_N)]
    combined, expected = step_metrics(shares), step_metrics([whole])
    assert combined == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_k3_is_exact_and_never_negative_for_nearly_equal_policies(dtype: torch.dtype) -> None:
    distances = torch.logspace(-30, 1, 10_000, dtype=torch.float64).to(dtype)
    for difference in (distances, -distances):
        kl_N = kl_k3(torch.zeros_like(difference), difference)
        assert bool((kl_N >= 0).all())
    same, near = kl_k3(torch.zeros(2, dtype=dtype), torch.tensor([0.0, 1e-3], dtype=dtype)).tolist()
    assert same == 0
    assert near == pytest.approx(1e-3**2 / 2 + 1e-3**3 / 6, rel=1e-3)


def test_k1_and_k3_estimate_the_same_divergence() -> None:
    current, reference = torch.log_softmax(torch.tensor([[0.0, 1.0, 2.0], [0.5, 0.0, 1.0]]).double(), dim=-1)
    exact = (current.exp() * (current - reference)).sum()
    assert float((current.exp() * kl_k1(current, reference)).sum()) == pytest.approx(float(exact))
    assert float((current.exp() * kl_k3(current, reference)).sum()) == pytest.approx(float(exact))


@given(token_batches(), st.floats(0.01, 1))
def test_a_kl_penalty_in_the_advantages_is_centred(batch: TokenBatch, coefficient: float) -> None:
    reference = batch.behaviour_N
    penalised = penalised_advantages(
        batch.advantages_N, batch.current_N, reference, batch.mask_N, coefficient=coefficient
    )
    change = (penalised - batch.advantages_N)[batch.mask_N]
    assert float(change.sum()) == pytest.approx(0, abs=1e-9)
    far = (batch.current_N - reference).detach()[batch.mask_N]
    assert int(change.argmin()) == int(far.argmax())


@pytest.mark.parametrize(
    ("settings", "ratio", "advantage", "expected", "clipped"),
    [
        (CISPO, 2.0, 1.5, -3.0, False),
        (CISPO, 8.0, 1.5, -7.5, True),
        (CISPO, 8.0, -1.0, 5.0, True),
        (TrainConfig(ratio_min=0.5), 0.25, 1.0, -0.5, True),
        (PPO, 1.1, 2.0, -2.2, False),
        (PPO, 1.5, 2.0, 0.0, True),
        (PPO, 0.5, 2.0, -1.0, False),
        (PPO, 0.5, -2.0, 0.0, True),
        (PPO, 2.0, -2.0, 4.0, False),
        (PPO, 4.0, -2.0, 0.0, True),
        (TrainConfig(loss="ppo", dual_clip=None), 4.0, -2.0, 8.0, False),
    ],
)
def test_gradient_of_one_token(
    settings: TrainConfig, ratio: float, advantage: float, expected: float, clipped: bool
) -> None:
    batch = one_sequence(ratio, advantage=advantage)
    assert float(gradient(batch, settings)) == pytest.approx(expected)
    assert float(policy_loss(batch, settings, global_tokens=1.0).clipped) == clipped


def test_dual_clip_bounds_the_loss_of_a_negative_advantage() -> None:
    far = ppo(torch.tensor([10.0]), torch.tensor([-2.0]), epsilon=0.2, epsilon_high=0.2, dual_clip=3.0)
    assert float(far.loss_N) == 6.0


def test_a_stale_negative_sequence_is_left_out_and_a_positive_one_is_not() -> None:
    batch = whole_batch(
        torch.tensor([-5.0, -5.0, -5.0, -1.0], requires_grad=True),
        behaviour_N=torch.tensor([-1.0, -1.0, -1.0, -1.0]),
        advantages_N=torch.tensor([-1.0, -1.0, 1.0, -1.0]),
        sequence_N=torch.tensor([0, 0, 1, 2]),
    )
    columns = (batch.current_N, batch.behaviour_N, batch.advantages_N, batch.sequence_N, batch.mask_N)
    assert stale_negatives(*columns, threshold=0.5).tolist() == [True, True, False, False]
    masked = gradient(batch, TrainConfig(off_policy_mask_threshold=0.5))
    assert (masked != 0).tolist() == [False, False, True, True]


def test_metrics_of_a_case_worked_by_hand() -> None:
    batch = whole_batch(
        torch.tensor([math.log(0.6), math.log(0.2)], dtype=torch.float64, requires_grad=True),
        behaviour_N=torch.tensor([math.log(0.3), math.log(0.2)], dtype=torch.float64),
        advantages_N=torch.tensor([1.0, -1.0], dtype=torch.float64),
        sequence_N=torch.tensor([0, 1]),
        entropy_N=torch.tensor([0.5, 1.5], dtype=torch.float64),
    )
    report = step_metrics([policy_loss(batch, CISPO, global_tokens=2.0)])
    assert report["loss"] == pytest.approx(-(2 * math.log(0.6) - math.log(0.2)) / 2)
    assert report["ratio_mean"] == pytest.approx(1.5)
    assert report["ratio_max"] == pytest.approx(2)
    assert report["effective_sample_size"] == pytest.approx(3**2 / (2 * 5))
    assert report["mismatch_kl"] == pytest.approx((2 - 1 - math.log(2)) / 2)
    assert report["entropy"] == pytest.approx(1.0)
    assert (report["clip_fraction"], report["tokens_trained"]) == (0.0, 2.0)


def test_a_small_mismatch_is_reported_as_it_is() -> None:
    batch = one_sequence(1.0)
    current = batch.current_N.detach().float()
    near = replace(batch, current_N=current.requires_grad_(), behaviour_N=(current - 1e-4).detach())
    difference = float((near.current_N.double() - near.behaviour_N.double()).detach())
    report = step_metrics([policy_loss(near, CISPO, global_tokens=1.0)])
    assert report["mismatch_kl"] == pytest.approx(difference**2 / 2, rel=1e-2)


def test_entropy_bonus_and_k3_penalty_enter_the_loss() -> None:
    batch = replace(
        one_sequence(1.0, advantage=0.0),
        reference_N=torch.tensor([-2.0], dtype=torch.float64),
        entropy_N=torch.tensor([0.7], dtype=torch.float64),
    )
    settings = TrainConfig(kl_estimator="k3", kl_coefficient=0.5, entropy_bonus=0.1)
    loss = policy_loss(batch, settings, global_tokens=1.0).loss
    assert float(loss.detach()) == pytest.approx(0.5 * (math.exp(-1) + 1 - 1) - 0.07)
    assert float(gradient(batch, settings)) == pytest.approx(0.5 * (1 - math.exp(-1)))


@pytest.mark.parametrize("settings", [CISPO, PPO, TrainConfig(loss="dppo")])
def test_each_token_is_pushed_by_the_advantage_of_its_own_turn(settings: TrainConfig) -> None:
    """Two turns of one sequence, +1 and −0.5, the second on-policy by a ratio of e^0.1: the gradient is −A · r / N."""
    behaviour = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64)
    current = (behaviour + torch.tensor([0.0, 0.0, 0.1], dtype=torch.float64)).requires_grad_()
    batch = TokenBatch(
        current_N=current,
        behaviour_N=behaviour,
        advantages_N=torch.tensor([1.0, 1.0, -0.5], dtype=torch.float64),
        weights_N=torch.ones(3, dtype=torch.float64),
        sequence_N=torch.zeros(3, dtype=torch.long),
        mask_N=torch.ones(3, dtype=torch.bool),
    )
    policy_loss(batch, settings, global_tokens=3.0).loss.backward()  # type: ignore[no-untyped-call]
    by_hand = torch.tensor([-1.0, -1.0, 0.5 * math.exp(0.1)], dtype=torch.float64) / 3
    assert current.grad is not None
    torch.testing.assert_close(current.grad, by_hand)
    plain = behaviour.clone().add(torch.tensor([0.0, 0.0, 0.1], dtype=torch.float64)).requires_grad_()
    (-(torch.exp(plain - behaviour) * torch.tensor([1.0, 1.0, -0.5], dtype=torch.float64)).sum() / 3).backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(plain.grad, by_hand)
