"""The configuration of a client that drives ART itself → what its update does here; what cannot be done is refused."""

import math
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel

from rollbus.schemas.errors import RejectedError
from rollbus.trainer.backends.durable.retention import BASE_VERSION
from rollbus.trainer.backends.sequences import ArtAdvantages
from rollbus.trainer.train_config import TrainConfig

REFUSED = (
    "kimi_k2_tau",
    "kl_penalty_step_lag",
    "kl_ref_adapter_path",
    "mask_prob_ratio",
    "max_negative_advantage_importance_sampling_weight",
    "num_trajectories_learning_rate_multiplier_power",
    "scale_learning_rate_by_reward_std_dev",
)
"""Of ART's training configuration: they change the loss or the step, so they are refused rather than ignored."""
BETA = "beta"
"""Of ART until 0.5.16: the coefficient of a k3 term in the loss, against the base model."""


class ClientConfig(BaseModel):
    """Of `art.types.TrainConfig`, with its defaults, what this service can honour or must refuse."""

    learning_rate: float = 5e-6
    kl_penalty_coef: float = 0.0
    kl_penalty_source: Literal["current_learner", "sample"] = "current_learner"


def read_client_config(config: Mapping[str, Any], dev_config: Mapping[str, Any]) -> tuple[TrainConfig, ArtAdvantages]:
    """Return what a client asks for, with ART's defaults.

    RejectedError names what this service does not support.
    """
    client = ClientConfig.model_validate(config)
    if refused := _list_refused(client, dev_config):
        raise RejectedError(
            f"this server does not know ART's {', '.join(refused)}; "
            "leave it out, and see docs/losses.md for what there is instead"
        )
    level, cap = dev_config.get("importance_sampling_level"), dev_config.get("truncated_importance_sampling")
    beta = beta_of(dev_config)
    client_values = {"learning_rate": client.learning_rate, "kl_penalty_coef": client.kl_penalty_coef, BETA: beta}
    unusable = [f"{name} {value}" for name, value in client_values.items() if not (math.isfinite(value) and value >= 0)]
    if unusable:
        raise RejectedError(f"{', '.join(unusable)} would spoil every weight; give finite numbers of at least 0")
    ppo = bool(dev_config.get("ppo", False))
    low, high = dev_config.get("epsilon"), dev_config.get("epsilon_high")  # 0 is a bound, too
    low = (0.2 if ppo else 1.0) if low is None else low
    high = (low if ppo else 4.0) if high is None else high
    settings = TrainConfig.model_construct(  # its bounds are ours, not ART's
        learning_rate=client.learning_rate,
        loss="ppo" if ppo else "cispo",
        advantages="art",
        ratio_level="sequence" if level == "sequence" else "token",
        ratio_min=1 - low,
        ratio_max=1 + high,
        epsilon=low,
        epsilon_high=high,
        dual_clip=None,
        kl_coefficient=beta or client.kl_penalty_coef,
        kl_estimator="k3" if beta else "k1",
        kl_reference_version=BASE_VERSION if beta else kl_reference(dev_config),
    )
    if cap:
        settings = settings.model_copy(update={"importance_correction": "token_truncate", "importance_cap": cap})
    scale_rewards, balance = bool(dev_config.get("scale_rewards", True)), float(dev_config.get("advantage_balance", 0))
    return settings, ArtAdvantages(scale_rewards, balance)


def beta_of(dev_config: Mapping[str, Any]) -> float:
    """The coefficient that a client of an earlier release gives; 0 without one."""
    return float(dev_config.get(BETA) or 0.0)


def kl_reference(dev_config: Mapping[str, Any]) -> int:
    """Return the reference version of a client's KL penalty."""
    return int(dev_config.get("kl_penalty_reference_step") or 0)


def _list_refused(config: ClientConfig, dev_config: Mapping[str, Any]) -> list[str]:
    """Return the names of settings that are not supported."""
    level = dev_config.get("importance_sampling_level", "token")
    source = dev_config.get("kl_penalty_source", config.kl_penalty_source)
    truncates, precalculates = "truncated_importance_sampling", "precalculate_logprobs"
    refused = [name for name in REFUSED if dev_config.get(name)]
    if level not in ("token", "sequence"):
        refused.append(f"importance_sampling_level {level!r}")
    if config.kl_penalty_coef and beta_of(dev_config):
        refused.append(f"{BETA} with kl_penalty_coef")
    if config.kl_penalty_coef and source != "current_learner":
        refused.append(f"kl_penalty_source {source!r}")
    if dev_config.get(truncates) and not dev_config.get(precalculates):  # ART takes no correction then
        refused.append(f"{truncates} without {precalculates}")
    if dev_config.get(precalculates) and not dev_config.get(truncates):  # nothing would correct for staleness
        refused.append(f"{precalculates} without {truncates}")
    return refused
