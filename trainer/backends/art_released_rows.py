"""A batch as the bodies that ART 0.5.7's server takes, and what of it that cannot take.

Such a server renders each chat again by its template and puts the sampled ids in the place of the answers. So a
trajectory goes there only where the template gives exactly the tokens that were recorded; all others are dropped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from rollbus.schemas.drops import DropReason
from rollbus.schemas.errors import RejectedError
from rollbus.schemas.tokens import decode_logprobs, decode_token_ids
from rollbus.trainer.backends.guards import Admitted, Limits, admit
from rollbus.trainer.backends.protocol import TrainConfig, TrainRequest, TrainTrajectory, TurnTokens

Json = dict[str, Any]
OURS = TrainConfig()
ARTS_OWN = ("max_grad_norm", "adam_beta1", "adam_beta2", "weight_decay")
"""What ART's update sets itself: what is asked for beside our defaults would not be done."""
Render = Callable[[list[Json]], list[int]]
"""Messages → the ids of the prompt for the next answer."""


def admit_rendered(request: TrainRequest, limits: Limits, render: Render) -> Admitted:
    """As `admit`, and drop what the template would not render to its recorded tokens."""
    kept, dropped = [], {}
    for trajectory in request.trajectories:
        if is_rendered_exactly(trajectory, render):
            kept.append(trajectory)
        else:
            dropped[trajectory.trajectory_id] = str(DropReason.REJECTED_BY_BACKEND)
    rest = TrainRequest(
        request.batch_hash, request.run_id, request.model, request.base_version, tuple(kept), request.config
    )
    admitted = admit(rest, limits, temperatures=False)
    return Admitted(admitted.trajectories, {**dropped, **admitted.dropped})


def is_rendered_exactly(trajectory: TrainTrajectory, render: Render) -> bool:
    messages: list[Json] = []
    for said in trajectory.conversation:
        if said.turn is None and json.loads(said.message)["role"] == "assistant":
            return False  # it would be trained as if the policy had said it
        if said.turn is not None:
            recorded = decode_token_ids(trajectory.turns[said.turn].prompt_token_ids).tolist()
            if render(messages) != recorded:
                return False
        messages.append(json.loads(said.message))
    return {said.turn for said in trajectory.conversation} >= set(range(len(trajectory.turns)))


def groups_to_json(trajectories: Sequence[TrainTrajectory]) -> list[Json]:
    groups: dict[str, list[Json]] = {}
    for trajectory in trajectories:
        groups.setdefault(trajectory.group_id, []).append(_trajectory(trajectory))
    return [{"trajectories": members, "exceptions": []} for members in groups.values()]


def configs_to_json(config: TrainConfig) -> tuple[Json, Json]:
    """ART's `config` and `dev_config`. RejectedError names what these servers do not do."""
    wrong = [
        name
        for name, wanted in {
            "advantages: given (they compute their own; set `advantages: art`)": config.advantages != "art",
            f"loss: {config.loss}": config.loss == "dppo",
            f"importance_correction: {config.importance_correction}": config.importance_correction != "none",
            f"aggregation: {config.aggregation} (theirs is trajectory_mean)": config.aggregation != "trajectory_mean",
            "kl_estimator: k1 (theirs is k3, against the base model)": bool(config.kl_coefficient)
            and (config.kl_estimator == "k1" or config.kl_reference_version != 0),
            "behaviour_kl_coefficient": bool(config.behaviour_kl_coefficient),
            "entropy_bonus": bool(config.entropy_bonus),
            "off_policy_mask_threshold": config.off_policy_mask_threshold is not None,
            "dual_clip": config.loss == "ppo" and config.dual_clip not in (None, OURS.dual_clip),
            **{name: getattr(config, name) != getattr(OURS, name) for name in ARTS_OWN},
        }.items()
        if wanted
    ]
    if wrong:
        raise RejectedError(f"a released ART server does not do {'; '.join(wrong)}; change `trainer: train:`")
    ppo = config.loss == "ppo"
    update = {"learning_rate": config.learning_rate, "beta": config.kl_coefficient}
    own = {
        "ppo": ppo,
        "epsilon": config.epsilon if ppo else 1 - config.ratio_min,
        "epsilon_high": config.epsilon_high if ppo else config.ratio_max - 1,
        "importance_sampling_level": config.ratio_level,
    }
    return update, own


def _trajectory(trajectory: TrainTrajectory) -> Json:
    chat: list[Json] = []
    for said in trajectory.conversation:
        message = json.loads(said.message)
        chat.append(message if said.turn is None else _choice(message, trajectory.turns[said.turn]))
    return {"messages_and_choices": chat, "reward": trajectory.reward, "metrics": {}, "metadata": {}, "logs": []}


def _choice(message: Json, turn: TurnTokens) -> Json:
    """Ids as `token_id:5`: as text a token would be looked up, and one that is not found becomes the end token."""
    sampled = zip(decode_token_ids(turn.completion_token_ids), decode_logprobs(turn.logprobs), strict=True)
    content: list[Json] = [
        {"token": f"token_id:{token_id}", "logprob": logprob, "bytes": None, "top_logprobs": []}
        for token_id, logprob in sampled
    ]
    return {
        "finish_reason": "stop",
        "index": 0,
        "message": {**message, "content": message.get("content") or ""},
        "logprobs": {"content": content, "refusal": None},
    }
