"""The last look at a batch before it trains: which trajectories can be trained, and why the others cannot.

Pure. The trainer's own door has refused most of this already; here it is refused for whoever else submits, because ART
would train on it in silence, fail the whole call, or write weights full of NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rollbus.schemas.drops import DropReason
from rollbus.schemas.tokens import decode_logprobs, decode_token_ids
from rollbus.trainer.backends.model_settings import LEAST_TEMPERATURE
from rollbus.trainer.backends.protocol import TrainRequest, TrainTrajectory, TurnTokens

ROUNDING = 1e-9
"""Rewards of a group that differ by no more than this share of their size are equal: what differs is rounding."""
NOISE = 1e-6
"""Advantages no larger than this are what is left of rounding after division by a tiny deviation."""


@dataclass(frozen=True, slots=True)
class Limits:
    max_tokens: int
    vocabulary: int
    lineage: frozenset[int] | None = None
    """Versions the base descends from, itself included; None checks nothing."""


@dataclass(frozen=True, slots=True)
class Admitted:
    trajectories: tuple[TrainTrajectory, ...]
    dropped: dict[str, str]
    """Trajectory id → reason code."""
    trained_ids: tuple[str, ...] = ()
    """Of a batch that is known by its ids only."""


def admit(request: TrainRequest, limits: Limits, *, temperatures: bool = True) -> Admitted:
    """Split the batch; `temperatures` is False where the update knows none.

    Groups are judged after their members: one whose rewards are all equal has nothing to say.
    """
    dropped: dict[str, str] = {}
    kept: list[TrainTrajectory] = []
    given = request.config.advantages == "given"
    for trajectory in request.trajectories:
        if (reason := refusal(trajectory, limits, tempered=given and temperatures)) is not None:
            dropped[trajectory.trajectory_id] = reason
        else:
            kept.append(trajectory)
    silent = {group for group, members in _by_group(kept).items() if _no_signal(members, given=given)}
    for trajectory in kept:
        if trajectory.group_id in silent:
            dropped[trajectory.trajectory_id] = DropReason.NO_SIGNAL
    return Admitted(tuple(one for one in kept if one.group_id not in silent), dropped)


def refusal(trajectory: TrainTrajectory, limits: Limits, *, tempered: bool = True) -> str | None:
    """The reason code for which this trajectory cannot be trained, if there is one.

    `tempered` is False where the update cannot divide logits by a temperature: ART's own packing does not carry it.
    """
    if not trajectory.turns:
        return DropReason.NO_TURNS
    if not (math.isfinite(trajectory.reward) and math.isfinite(trajectory.advantage)):
        return DropReason.REJECTED_BY_BACKEND
    for turn in trajectory.turns:
        if (reason := _turn_refusal(turn, limits)) is not None:
            return reason
        if turn.temperature != 1 and not (tempered and _temperature_fits(turn)):
            return DropReason.TEMPERATURE
    return None


def _temperature_fits(turn: TurnTokens) -> bool:
    return turn.logprob_mode == "processed" and LEAST_TEMPERATURE <= turn.temperature < math.inf


def _turn_refusal(turn: TurnTokens, limits: Limits) -> str | None:
    if any(len(data) % 4 for data in (turn.prompt_token_ids, turn.completion_token_ids, turn.logprobs)):
        return DropReason.UNTRAINABLE
    prompt, completion = decode_token_ids(turn.prompt_token_ids), decode_token_ids(turn.completion_token_ids)
    logprobs = decode_logprobs(turn.logprobs)
    if not prompt or not completion or len(completion) != len(logprobs):
        return DropReason.UNTRAINABLE
    if len(prompt) + len(completion) > limits.max_tokens:
        return DropReason.OVERLONG
    if not _ids_fit(prompt, limits.vocabulary) or not _ids_fit(completion, limits.vocabulary):
        return DropReason.UNTRAINABLE
    if not all(math.isfinite(value) and value <= 0 for value in logprobs):
        return DropReason.UNTRAINABLE
    if limits.lineage is not None and turn.policy_version not in limits.lineage:
        return DropReason.OFF_LINEAGE
    return None


def _ids_fit(token_ids: Sequence[int], vocabulary: int) -> bool:
    return min(token_ids) >= 0 and max(token_ids) < vocabulary


def _by_group(trajectories: Iterable[TrainTrajectory]) -> dict[str, list[TrainTrajectory]]:
    groups: dict[str, list[TrainTrajectory]] = {}
    for trajectory in trajectories:
        groups.setdefault(trajectory.group_id, []).append(trajectory)
    return groups


def _no_signal(group: list[TrainTrajectory], *, given: bool) -> bool:
    """True if no member has an advantage, or if what separates them is rounding.

    Members with one reward may well share a given advantage: theirs is measured against members that were dropped.
    """
    advantages = [member.advantage for member in group]
    if given and max(map(abs, advantages)) <= NOISE:
        return True
    rewards = [member.reward for member in group]
    size = max(1.0, *(abs(reward) for reward in rewards))
    if len(group) > 1 and max(rewards) - min(rewards) <= ROUNDING * size:
        return not given or max(advantages) - min(advantages) > NOISE
    return False
