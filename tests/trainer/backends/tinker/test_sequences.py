"""Turns become sequences token for token, and `aggregation` is in the advantages."""

import math
from dataclasses import replace

import pytest

from rollbus.schemas.errors import UnavailableError
from rollbus.schemas.records.tokens import encode_logprobs, encode_token_ids
from rollbus.trainer.backends.protocol import TrainTrajectory, TurnTokens
from rollbus.trainer.backends.tinker.sequences import find_unsupported, make_loss, make_loss_sequences
from rollbus.trainer.train_config import TrainConfig


def make_turn(prompt: list[int], completion: list[int], *, history: int = 0) -> TurnTokens:
    return TurnTokens(
        prompt_token_ids=encode_token_ids(prompt),
        completion_token_ids=encode_token_ids(completion),
        logprobs=encode_logprobs([-0.5 * (place + 1) for place in range(len(completion))]),
        policy_version=0,
        history=history,
    )


def make_trajectory(*turns: TurnTokens, name: str = "t", group: str = "g", advantage: float = 1.0) -> TrainTrajectory:
    return TrainTrajectory(name, group, advantage, reward=advantage, turns=turns)


def test_a_turn_is_shifted_by_one_and_trains_only_what_was_sampled() -> None:
    (trained,), loss = make_loss_sequences([make_trajectory(make_turn([1, 2, 3], [4, 5]))], TrainConfig())
    assert (trained.sequence.token_ids, trained.sequence.target_ids) == ((1, 2, 3, 4), (2, 3, 4, 5))
    assert trained.sequence.logprobs == (0, 0, -0.5, -1.0)
    assert trained.sequence.advantages == (0, 0, 0.5, 0.5)
    assert (loss.name, dict(loss.bounds)) == ("cispo", {"clip_low_threshold": 0.0, "clip_high_threshold": 5.0})


def test_turns_that_continue_one_another_become_one_sequence() -> None:
    turns = make_turn([1], [2, 3]), make_turn([1, 2, 3, 9], [4])
    (trained,), _ = make_loss_sequences([make_trajectory(*turns)], TrainConfig())
    assert trained.sequence.target_ids == (2, 3, 9, 4)
    assert [math.copysign(1, advantage) if advantage else 0 for advantage in trained.sequence.advantages] == [
        1,
        1,
        0,
        1,
    ]
    assert [(span.start, span.end) for span in trained.spans] == [(0, 2), (3, 4)]


@pytest.mark.parametrize("second", [make_turn([1, 2, 8, 9], [4]), make_turn([1, 2, 3, 9], [4], history=1)])
def test_a_prompt_that_does_not_continue_begins_another_sequence(second: TurnTokens) -> None:
    sequences, _ = make_loss_sequences([make_trajectory(make_turn([1], [2, 3]), second)], TrainConfig())
    assert [len(trained.sequence.token_ids) for trained in sequences] == [2, 4]


def sums_by_trajectory(config: TrainConfig) -> list[float]:
    """Of trajectories with 1, 3 and 4 sampled tokens, the last in a group of its own; advantage 1."""
    trajectories = [
        make_trajectory(make_turn([1], [2]), name="a"),
        make_trajectory(make_turn([1], [2, 3, 4]), name="b"),
        make_trajectory(make_turn([1], [2, 3, 4, 5]), name="c", group="h"),
    ]
    sequences, _ = make_loss_sequences(trajectories, config)
    return [math.fsum(trained.sequence.advantages) for trained in sequences]


@pytest.mark.parametrize(
    ("config", "sums"),
    [
        (TrainConfig(), [1 / 8, 3 / 8, 4 / 8]),
        (TrainConfig(aggregation="trajectory_mean"), [1 / 3, 1 / 3, 1 / 3]),
        (TrainConfig(aggregation="prompt_mean"), [1 / 8, 3 / 8, 1 / 2]),
        (TrainConfig(aggregation="constant", aggregation_tokens=2), [1 / 6, 3 / 6, 4 / 6]),
    ],
    ids=["token_mean", "trajectory_mean", "prompt_mean", "constant"],
)
def test_the_advantages_hold_the_weights_and_the_divisor(config: TrainConfig, sums: list[float]) -> None:
    assert sums_by_trajectory(config) == pytest.approx(sums)


def test_the_pull_of_dro_is_on_the_scale_of_its_advantages() -> None:
    trajectory = make_trajectory(make_turn([1], [2, 3, 4, 5]))
    (trained,), loss = make_loss_sequences([trajectory], TrainConfig(loss="dro", dro_beta=0.2))
    assert loss.bounds["beta"] / trained.sequence.advantages[0] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"loss": "dppo"}, "loss: dppo"),
        ({"loss": "ppo"}, "dual_clip: 3.0"),
        ({"loss": "dro", "aggregation": "prompt_mean"}, "loss: dro with aggregation: prompt_mean"),
        ({"advantages": "art"}, "advantages: art"),
        ({"ratio_level": "sequence"}, "ratio_level: sequence"),
        ({"importance_correction": "token_mask"}, "importance_correction: token_mask"),
        ({"sequence_mask": "k1", "sequence_mask_bounds": (-1, 1)}, "sequence_mask: k1"),
        ({"kl_coefficient": 0.1}, "kl_coefficient: 0.1"),
        ({"behaviour_kl_coefficient": 0.1}, "behaviour_kl_coefficient: 0.1"),
        ({"off_policy_mask_threshold": 0.5}, "off_policy_mask_threshold: 0.5"),
        ({"entropy_bonus": 0.01}, "entropy_bonus: 0.01"),
    ],
)
def test_a_setting_that_no_service_has_is_named(changes: dict[str, object], name: str) -> None:
    config = TrainConfig.model_validate(changes)
    assert find_unsupported(config) == [name]
    with pytest.raises(UnavailableError, match=name):
        make_loss(config)


@pytest.mark.parametrize(
    ("config", "bounds"),
    [
        (TrainConfig(loss="importance_sampling"), {}),
        (TrainConfig(loss="ppo", dual_clip=None), {"clip_low_threshold": 0.8, "clip_high_threshold": 1.28}),
        (TrainConfig(loss="cispo", ratio_min=0.5), {"clip_low_threshold": 0.5, "clip_high_threshold": 5.0}),
        (TrainConfig(loss="dro"), {"beta": 0.05}),
    ],
    ids=["importance_sampling", "ppo", "cispo", "dro"],
)
def test_each_loss_has_its_bounds(config: TrainConfig, bounds: dict[str, float]) -> None:
    loss = make_loss(config)
    assert (loss.name, dict(loss.bounds)) == (config.loss, bounds)


def test_each_turn_of_a_sequence_has_its_own_advantage() -> None:
    first = replace(make_turn([1, 2], [3]), advantage=2.0)
    second = replace(make_turn([1, 2, 3, 4], [5, 6]), advantage=-1.0)
    (trained,), _ = make_loss_sequences([make_trajectory(first, second)], TrainConfig())
    whole = trained.sequence.advantages
    assert len(whole) == 5
    assert (whole[0], whole[2]) == (0.0, 0.0)
    assert whole[1] == pytest.approx(-2 * whole[3])
    assert whole[3] == whole[4]
