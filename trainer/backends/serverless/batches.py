"""A batch and its settings → those of a job, or the names of what the service would not do. Pure.

The body of a job has rewards and no advantages: the service computes ART's own. So only what ART computes may be sent.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rollbus.schemas.errors import UnavailableError
from rollbus.trainer.backends.art_terms.update import find_unsupported, make_update_arguments
from rollbus.trainer.backends.protocol import TrainTrajectory
from rollbus.trainer.train_config import TrainConfig

SINGLE_GROUPS = 4
"""As many groups of one member are single attempts; of fewer, the other members may have been dropped at the door."""


def find_unsupported_settings(config: TrainConfig) -> list[str]:
    """Return the settings that the service does not have."""
    refused = find_unsupported(config)
    if config.advantages != "art":
        refused.append(f"advantages: {config.advantages} (say `advantages: art`, the service computes its own)")
    return refused


def find_unsupported_content(trajectories: Sequence[TrainTrajectory]) -> list[str]:
    """Return what a batch has that the service would leave out."""
    refused = []
    if with_own := sum(trajectory.has_turn_advantages for trajectory in trajectories):
        refused.append(f"advantages of turns or tokens, which {with_own} of {len(trajectories)} trajectories have")
    sizes = Counter(trajectory.group_id for trajectory in trajectories)
    if len(sizes) >= SINGLE_GROUPS and max(sizes.values()) == 1:
        refused.append("single attempts: every group has one member, and the service compares members of a group")
    return refused


def find_singles(trajectories: Sequence[TrainTrajectory]) -> frozenset[str]:
    """Return the ids of those that are alone in their group, which ART leaves out."""
    sizes = Counter(trajectory.group_id for trajectory in trajectories)
    return frozenset(member.trajectory_id for member in trajectories if sizes[member.group_id] == 1)


def require_supported(config: TrainConfig, trajectories: Sequence[TrainTrajectory]) -> None:
    """Raise UnavailableError with the names of what the service does not do: the batch is not at fault."""
    if refused := find_unsupported_settings(config) + find_unsupported_content(trajectories):
        raise UnavailableError(
            f"W&B's serverless training does not know {', '.join(refused)}; change the settings, or train with "
            "`rollbus art-server`"
        )


def make_job_config(config: TrainConfig) -> dict[str, Any]:
    """Return the `experimental_config` of a job, as ART's own backend makes it of the same arguments."""
    return {
        "advantage_balance": 0.0,
        "allow_training_without_logprobs": False,
        "kl_penalty_source": "current_learner",  # as our own learner; ART's backend would take the recorded log-probs
        "mask_prob_ratio": False,
        "normalize_advantages": True,
        "ppo": config.loss == "ppo",
        "precalculate_logprobs": False,
        "scale_rewards": True,
    } | make_update_arguments(config)
