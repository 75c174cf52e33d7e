"""What a Tinker service is told to minimise is what the project's own learner minimises, with the same gradient."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollbus.schemas.records.tokens import encode_logprobs, encode_token_ids
from rollbus.trainer.backends.protocol import TrainTrajectory, TurnTokens
from rollbus.trainer.backends.tinker.figures import loss_value, step_metrics
from rollbus.trainer.backends.tinker.memory import loss_slope
from rollbus.trainer.backends.tinker.sequences import make_loss_sequences
from rollbus.trainer.backends.tinker.service import PassOutput
from rollbus.trainer.grpo import step_loss
from rollbus.trainer.grpo.aggregation import token_weight
from rollbus.trainer.train_config import TrainConfig
from tests.trainer.grpo.token_batches import gradient, one_sequence

LOSSES = [
    TrainConfig(loss="importance_sampling"),
    TrainConfig(loss="ppo", dual_clip=None),
    TrainConfig(loss="cispo", ratio_min=0.5, ratio_max=2.0),
    TrainConfig(loss="dro", dro_beta=0.3),
]
SIZES = (1, 3, 2, 4)
"""Sampled tokens of each trajectory; two of each group."""


@given(
    st.integers(0, 2**31), st.sampled_from(LOSSES), st.sampled_from(["token_mean", "trajectory_mean", "prompt_mean"])
)
def test_a_services_loss_is_the_learners(seed: int, config: TrainConfig, aggregation: Any) -> None:
    if config.loss == "dro" and aggregation != "token_mean":
        return  # refused
    config = config.model_copy(update={"aggregation": aggregation})
    generator = torch.Generator().manual_seed(seed)
    behaviour, own = -3 * torch.rand(2, sum(SIZES), generator=generator, dtype=torch.float64)
    behaviour = behaviour.float().double()
    advantages = torch.randn(len(SIZES), generator=generator, dtype=torch.float64)
    trajectories, weights, at = [], [], 0
    for index, size in enumerate(SIZES):
        logprobs = encode_logprobs(behaviour[at : at + size].tolist())
        turn = TurnTokens(encode_token_ids([7]), encode_token_ids(range(size)), logprobs, 0)
        trajectories.append(TrainTrajectory(f"t{index}", f"g{index // 2}", float(advantages[index]), 0.0, (turn,)))
        of_group = sum(SIZES[index // 2 * 2 : index // 2 * 2 + 2])
        weights += [token_weight(aggregation, trajectory_tokens=size, group_tokens=of_group)] * size
        at += size
    weights_N = torch.tensor(weights, dtype=torch.float64)
    batch = step_loss.TokenBatch(
        current_N=own,
        behaviour_N=behaviour,
        advantages_N=advantages.repeat_interleave(torch.tensor(SIZES)),
        weights_N=weights_N / weights_N.mean(),
        sequence_N=torch.arange(len(SIZES)).repeat_interleave(torch.tensor(SIZES)),
        mask_N=torch.ones(len(own), dtype=torch.bool),
    )
    expected = step_loss.step_metrics([step_loss.policy_loss(batch, config, global_tokens=float(len(own)))])
    sequences, loss = make_loss_sequences(trajectories, config)
    output = PassOutput(tuple(tuple(part.tolist()) for part in torch.split(own, list(SIZES))), {})
    assert loss_value([trained.sequence for trained in sequences], output, loss) == pytest.approx(expected["loss"])
    metrics = step_metrics(sequences, output, loss)
    for name in ("ratio_mean", "ratio_max", "mismatch_kl", "logprob_difference_max", "effective_sample_size"):
        assert metrics[name] == pytest.approx(expected[name], rel=1e-5), name


@pytest.mark.parametrize("config", LOSSES, ids=[config.loss for config in LOSSES])
@pytest.mark.parametrize("ratio", [0.3, 0.9, 1.1, 4.0])
@pytest.mark.parametrize("advantage", [-1.5, 2.0])
def test_the_fake_moves_along_the_learners_gradient(config: TrainConfig, ratio: float, advantage: float) -> None:
    batch = one_sequence(ratio, advantage=advantage)
    own, behaviour = float(batch.current_N.detach()) - 2, float(batch.behaviour_N) - 2
    turn = TurnTokens(encode_token_ids([7]), encode_token_ids([1]), encode_logprobs([behaviour]), 0)
    (trained,), loss = make_loss_sequences([TrainTrajectory("t", "g", advantage, 0.0, (turn,))], config)
    slope = loss_slope(loss, own, behaviour, trained.sequence.advantages[0])
    assert slope == pytest.approx(float(gradient(batch, config)), rel=1e-6)


def test_dro_worked_by_hand() -> None:
    """At ratio e the policy has moved by 1: loss −(2·n − 0.3/2), slope −2 + 0.3."""
    batch = one_sequence(torch.e, advantage=2.0)
    config = TrainConfig(loss="dro", dro_beta=0.3)
    own = float(batch.current_N.detach())
    assert float(step_loss.policy_loss(batch, config, global_tokens=1.0).loss.detach()) == pytest.approx(0.15 - 2 * own)
    assert float(gradient(batch, config)) == pytest.approx(-1.7)


@given(st.floats(0.05, 20), st.sampled_from([-1.0, 1.0]))
def test_importance_sampling_is_ppo_without_bounds(ratio: float, advantage: float) -> None:
    batch = one_sequence(ratio, advantage=advantage)
    token_gradient = float(gradient(batch, TrainConfig(loss="importance_sampling")))
    assert token_gradient == pytest.approx(-ratio * advantage, rel=1e-6)
