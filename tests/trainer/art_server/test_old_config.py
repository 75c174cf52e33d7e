"""What a client's ART configuration asks for is done, or refused by name."""

from typing import Any

import pytest

from rollbus.schemas.errors import RejectedError
from rollbus.trainer.art_server.control.old_config import read_client_config
from rollbus.trainer.backends.sequences import ArtAdvantages
from rollbus.trainer.train_config import TrainConfig


def settings(config: dict[str, Any] | None = None, **dev_config: Any) -> TrainConfig:
    return read_client_config(config or {}, dev_config)[0]


def test_the_defaults_are_arts() -> None:
    config = settings()
    assert (config.loss, config.ratio_min, config.ratio_max, config.advantages) == ("cispo", 0.0, 5.0, "art")
    config = settings(ppo=True)
    assert (config.loss, config.epsilon, config.epsilon_high, config.dual_clip) == ("ppo", 0.2, 0.2, None)


def test_a_bound_of_0_is_no_default() -> None:
    config = settings(epsilon=0.0, epsilon_high=0.0)
    assert (config.ratio_min, config.ratio_max) == (1.0, 1.0)
    config = settings(ppo=True, epsilon=0.1, epsilon_high=0.0)
    assert (config.epsilon, config.epsilon_high) == (0.1, 0.0)


def test_a_client_can_choose_its_advantages_but_not_the_packing() -> None:
    assert read_client_config({}, {})[1] == ArtAdvantages(scale_rewards=True, balance=0.0)
    chosen = read_client_config({}, {"scale_rewards": False, "advantage_balance": 0.3, "packed_sequence_length": 64})[1]
    assert chosen == ArtAdvantages(scale_rewards=False, balance=0.3)


def test_a_truncated_correction_is_accepted_with_its_proximal_policy() -> None:
    config = settings(truncated_importance_sampling=1.5, precalculate_logprobs=True)
    assert (config.importance_correction, config.importance_cap) == ("token_truncate", 1.5)
    plain_config = settings(truncated_importance_sampling=None, precalculate_logprobs=False)
    assert (plain_config.importance_correction, plain_config.importance_cap) == ("none", 2.0)


def test_the_reference_of_the_penalty_is_the_one_named() -> None:
    config = settings({"kl_penalty_coef": 0.1}, kl_penalty_reference_step=2)
    assert (config.kl_coefficient, config.kl_estimator, config.kl_reference_version) == (0.1, "k1", 2)


def test_beta_of_earlier_releases_is_a_kl_penalty_to_the_base_model() -> None:
    config = settings(beta=0.04)
    assert (config.kl_coefficient, config.kl_estimator, config.kl_reference_version) == (0.04, "k3", 0)
    assert settings(beta=0.0).kl_coefficient == 0


@pytest.mark.parametrize(
    ("dev_config", "config", "refusal"),
    [
        ({"beta": 0.04}, {"kl_penalty_coef": 0.1}, "beta with kl_penalty_coef"),
        ({"beta": -1.0}, {}, "beta -1.0 would spoil"),
        ({"scale_learning_rate_by_reward_std_dev": True}, {}, "scale_learning_rate_by_reward_std_dev"),
        ({"num_trajectories_learning_rate_multiplier_power": 0.5}, {}, "num_trajectories_learning_rate_multiplier_po"),
        ({"kimi_k2_tau": 0.1}, {}, "kimi_k2_tau"),
        ({"importance_sampling_level": "average"}, {}, "importance_sampling_level 'average'"),
        ({"kl_penalty_step_lag": 3}, {"kl_penalty_coef": 0.1}, "kl_penalty_step_lag"),
        ({"kl_ref_adapter_path": "/x"}, {"kl_penalty_coef": 0.1}, "kl_ref_adapter_path"),
        ({}, {"kl_penalty_coef": 0.1, "kl_penalty_source": "sample"}, "kl_penalty_source 'sample'"),
        ({"precalculate_logprobs": True}, {}, "precalculate_logprobs without truncated_importance_sampling"),
        ({"truncated_importance_sampling": 2.0}, {}, "truncated_importance_sampling without precalculate_logprobs"),
    ],
)
def test_an_unsupported_client_setting_is_refused(
    dev_config: dict[str, Any], config: dict[str, Any], refusal: str
) -> None:
    with pytest.raises(RejectedError, match=refusal):
        settings(config, **dev_config)
