"""A training call as released ART clients send it → the trajectories of a batch, and what of them can be trained.

A trajectory is trained on its recorded ids. If a client sent only sampled ids, the chat template renders its prompts: a
guess, so they are counted, and a call that mixes them with recorded ones is refused. Members that ART would drop after
taking the mean of their group, and groups that differ by rounding only, are dropped here first.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollbus.schemas.errors import RecordError, RejectedError, describe_error
from rollbus.schemas.records.drops import DropReason
from rollbus.schemas.records.tokens import encode_logprobs, encode_token_ids
from rollbus.trainer.backends.admission import Limits, admit
from rollbus.trainer.backends.protocol import TrainRequest, TrainTrajectory, TurnTokens
from rollbus.trainer.backends.sequences import group_trajectories
from rollbus.trainer.train_config import TrainConfig

TOKEN_PREFIX = "token_id:"
GRADIENT_STEPS = "data/step_num_gradient_steps"
STEP_METRICS = {"train": "loss", "grad_norm": "grad_norm", "entropy": "entropy", "learning_rate": "learning_rate"}
"""ART's names of what our learner reports, without `loss/`."""
COUNTED = (DropReason.OVERLONG, DropReason.NO_SIGNAL, DropReason.NO_TURNS)
"""Reasons for which members of any batch are left out; every other reason is a client's mistake, and an error."""

Render = Callable[[list[dict[str, Any]], Any], list[int]]
"""Messages and tools of a chat → the token ids of the prompt."""


@dataclass(frozen=True, slots=True)
class TrainCall:
    """What a client asks to train."""

    trajectories: tuple[TrainTrajectory, ...]
    rendered_prompts: int
    """Turns whose prompts were rendered here; all of them or none."""


@dataclass(frozen=True, slots=True)
class Trainable:
    """What of a call is handed to ART."""

    trajectories: tuple[TrainTrajectory, ...]
    dropped: Mapping[str, int]
    """How many were left out, by reason code."""


def read_call(groups: Sequence[Mapping[str, Any]], render: Render) -> TrainCall:
    """Read the groups of a call; RejectedError says what cannot be trained on."""
    prompts = _Prompts(render)
    trajectories = []
    for group, body in enumerate(groups):
        if not isinstance(body, Mapping) or not isinstance(members := body.get("trajectories"), list):
            raise RejectedError(f"group {group} must be an object with an array `trajectories`")
        for member, trajectory in enumerate(members):
            name = f"{group}-{member}"
            try:
                trajectories.append(_trajectory(name, str(group), trajectory, prompts))
            except (LookupError, TypeError, ValueError, OverflowError, AttributeError, RecordError) as error:
                raise RejectedError(
                    f"trajectory {name} (group-member) cannot be read: {describe_error(error)}"
                ) from error
    prompts.check_not_mixed()
    return TrainCall(tuple(trajectories), prompts.rendered)


def trainable(call: TrainCall, limits: Limits) -> Trainable:
    """Leave out what is too long or has no signal; ART computes advantages over the rest."""
    admitted = admit(TrainRequest("", "", "", 0, call.trajectories, TrainConfig(advantages="art")), limits)
    for name, reason in admitted.dropped.items():
        if reason not in COUNTED:
            raise RejectedError(
                f"trajectory {name} (group-member) cannot be trained: {reason}; its ids must be of a vocabulary of "
                f"{limits.vocabulary}, with one finite log-prob of at most 0 for each sampled id"
            )
    return Trainable(admitted.trajectories, Counter(map(str, admitted.dropped.values())))


def describe_step(trajectories: Sequence[TrainTrajectory], metrics: Mapping[str, float]) -> dict[str, float]:
    """Return what a client of ART reads of a call: its batch, and the optimizer step if there was one."""
    rewards = [{member.reward for member in members} for members in group_trajectories(trajectories).values()]
    groups = float(len(rewards))
    step = {
        "data/step_num_scenarios": groups,
        "data/step_num_trajectories": float(len(trajectories)),
        "data/step_num_groups_submitted": groups,
        "data/step_num_groups_trainable": float(sum(len(of_group) > 1 for of_group in rewards)),
        "data/step_trainable_assistant_tokens": metrics.get("tokens_trained", 0.0),
        GRADIENT_STEPS: float(bool(metrics)),
    }
    if not metrics:
        return step
    return step | {f"loss/{name}": metrics[of_step] for name, of_step in STEP_METRICS.items()}


class _Prompts:
    """The prompts of one call: as recorded, or rendered here; `rendered` counts the latter."""

    def __init__(self, render: Render) -> None:
        self._render = render
        self.with_ids = 0
        self.rendered = 0

    def of(self, choice: Mapping[str, Any], messages: list[dict[str, Any]], tools: Any) -> list[int]:
        if "prompt_token_ids" in choice:
            self.with_ids += 1
            return list(choice["prompt_token_ids"])
        self.rendered += 1
        return self._render(messages, tools)

    def check_not_mixed(self) -> None:
        if self.with_ids and self.rendered:
            raise RejectedError(
                f"{self.with_ids} choices bring their prompt_token_ids and {self.rendered} do not; those rendered "
                "here are never mixed with recorded ones: ask the endpoint for return_token_ids, or send the two apart"
            )


def _trajectory(name: str, group: str, body: Mapping[str, Any], prompts: _Prompts) -> TrainTrajectory:
    reward = float(body["reward"])
    if not math.isfinite(reward):
        raise RejectedError(f"trajectory {name} has the reward {reward}, which would spoil every weight")
    histories = [body, *(body.get("additional_histories") or [])]
    turns = [turn for number, history in enumerate(histories) for turn in _turns(number, history, prompts)]
    return TrainTrajectory(name, group, 0.0, reward, tuple(turns))


def _turns(number: int, history: Mapping[str, Any], prompts: _Prompts) -> list[TurnTokens]:
    """The choices of a history that bring log-probs, each with the ids it was shown and those it sampled."""
    messages: list[dict[str, Any]] = []
    turns: list[TurnTokens] = []
    for item in history["messages_and_choices"]:
        if "finish_reason" not in item:
            messages.append(item)
            continue
        content = ((item.get("logprobs") or {}).get("content")) or []
        if content:
            sampled = item.get("token_ids") or [_token_id(entry["token"]) for entry in content]
            turns.append(
                TurnTokens(
                    prompt_token_ids=encode_token_ids(prompts.of(item, messages, history.get("tools"))),
                    completion_token_ids=encode_token_ids(sampled),
                    logprobs=encode_logprobs(entry["logprob"] for entry in content),
                    policy_version=0,  # these clients do not say
                    history=number,
                )
            )
        messages.append(item["message"])
    return turns


def _token_id(token: str) -> int:
    if not token.startswith(TOKEN_PREFIX):
        raise RejectedError(
            f"the log-probs name the token {token!r} as text; ask the endpoint for return_tokens_as_token_ids, "
            "or send token_ids"
        )
    return int(token.removeprefix(TOKEN_PREFIX))
