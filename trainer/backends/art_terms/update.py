"""The settings of an update in ART's terms, and the names of those that ART's update does not have. Pure."""

from typing import Any

from rollbus.trainer.train_config import TrainConfig

OURS = TrainConfig()
ARTS_OWN = ("max_grad_norm", "adam_beta1", "adam_beta2", "weight_decay")
"""ART's update sets these itself, so values other than our defaults are refused."""


def find_unsupported(config: TrainConfig) -> list[str]:
    """Return the settings that ART's update does not have, as `name: value` or `name`."""
    is_unsupported = {
        f"loss: {config.loss}": config.loss not in ("cispo", "ppo"),
        f"importance_correction: {config.importance_correction}": config.importance_correction
        not in ("none", "token_truncate"),
        "kl_estimator: k3": bool(config.kl_coefficient) and config.kl_estimator == "k3",
        "behaviour_kl_coefficient": bool(config.behaviour_kl_coefficient),
        "entropy_bonus": bool(config.entropy_bonus),
        "distill": config.distill is not None,
        "importance_floor": bool(config.importance_floor),
        f"sequence_mask: {config.sequence_mask}": config.sequence_mask != "none",
        "off_policy_mask_threshold": config.off_policy_mask_threshold is not None,
        "aggregation: constant": config.aggregation == "constant",
        "dual_clip": config.loss == "ppo" and config.dual_clip not in (None, OURS.dual_clip),
        **{name: getattr(config, name) != getattr(OURS, name) for name in ARTS_OWN},
    }
    return [name for name, unsupported in is_unsupported.items() if unsupported]


def make_update_arguments(config: TrainConfig) -> dict[str, Any]:
    """Return what `train` of ART's backends takes, for settings that ART's update has."""
    ppo = config.loss == "ppo"
    arguments: dict[str, Any] = {
        "learning_rate": config.learning_rate,
        "loss_fn": "ppo" if ppo else "cispo",
        "epsilon": config.epsilon if ppo else 1 - config.ratio_min,
        "epsilon_high": config.epsilon_high if ppo else config.ratio_max - 1,
        "importance_sampling_level": config.ratio_level,
        "kl_penalty_coef": config.kl_coefficient,
    }
    if config.kl_coefficient and config.kl_reference_version:  # without it, the model without its adapter
        arguments["kl_penalty_reference_step"] = config.kl_reference_version
    if config.importance_correction == "token_truncate":
        arguments["truncated_importance_sampling"] = config.importance_cap
        arguments["precalculate_logprobs"] = True  # else ART has no proximal policy, and leaves the correction out
    return arguments
