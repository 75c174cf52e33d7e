"""Decide which members of a batch are trained: member and inspected payload → `TrainTrajectory`, or a drop and why.

Pure, and the last look before the backend: everything that would spoil the weights silently is refused here. A group
that loses members keeps the advantages it was recorded with; computed again without them, they would favour
whoever is left.
"""

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass

from rollbus.schemas.drops import DropReason
from rollbus.schemas.groups import Group, GroupMember, TrainingBatch
from rollbus.schemas.steps import DroppedMember
from rollbus.trainer.backends.protocol import TrainTrajectory
from rollbus.trainer.conversation import conversation_of
from rollbus.trainer.inspection import Inspected


@dataclass(frozen=True, slots=True)
class DoorRules:
    """What a member must keep to."""

    max_off_policy_steps: int
    max_sequence_tokens: int | None = None
    """Longest history that the backend takes; None where it does not say."""
    conversations: bool = False
    """Whether the backend wants the messages beside the tokens."""


@dataclass(frozen=True, slots=True)
class DoorResult:
    """Every member of the batch, once: admitted or dropped."""

    admitted: tuple[TrainTrajectory, ...]
    dropped: tuple[DroppedMember, ...]


def check_batch(
    batch: TrainingBatch,
    payloads: Mapping[str, Inspected],
    *,
    lags: Mapping[int, int],
    excluded: Container[str],
    rules: DoorRules,
) -> DoorResult:
    """Check every member; payloads are by trajectory id, `lags` by policy version from the base of the step."""
    admitted: list[TrainTrajectory] = []
    dropped: list[DroppedMember] = []
    taken: set[str] = set()
    for group in batch.groups:
        kept, lost = _check_group(group, payloads, taken, lags=lags, excluded=excluded, rules=rules)
        admitted.extend(kept)
        dropped.extend(lost)
    return DoorResult(tuple(admitted), tuple(dropped))


def _check_group(
    group: Group,
    payloads: Mapping[str, Inspected],
    taken: set[str],
    *,
    lags: Mapping[int, int],
    excluded: Container[str],
    rules: DoorRules,
) -> tuple[list[TrainTrajectory], list[DroppedMember]]:
    kept: list[TrainTrajectory] = []
    lost: list[DroppedMember] = []
    for member in group.members:
        if member.trajectory_id in taken:
            continue  # a member named twice has one fate
        taken.add(member.trajectory_id)
        found = payloads.get(member.trajectory_id)
        reason = _refusal(member, found, lags=lags, excluded=excluded, rules=rules)
        if reason is None and found is not None:
            said = conversation_of(found.payload) if rules.conversations else ()
            kept.append(
                TrainTrajectory(
                    trajectory_id=member.trajectory_id,
                    group_id=group.group_id,
                    advantage=member.advantage,
                    reward=member.reward,
                    turns=found.turns,
                    conversation=said,
                )
            )
        else:
            lost.append(DroppedMember(trajectory_id=member.trajectory_id, group_id=group.group_id, reason=str(reason)))
    if any(trajectory.advantage != 0 for trajectory in kept):
        return kept, lost
    without_signal = [
        DroppedMember(trajectory_id=each.trajectory_id, group_id=group.group_id, reason=str(DropReason.NO_SIGNAL))
        for each in kept
    ]
    return [], lost + without_signal


def _refusal(
    member: GroupMember,
    found: Inspected | None,
    *,
    lags: Mapping[int, int],
    excluded: Container[str],
    rules: DoorRules,
) -> DropReason | None:
    """The first reason against a member, the final ones first; None admits it."""
    if member.episode_id in excluded:
        return DropReason.EXCLUDED
    if found is None:
        return DropReason.PAYLOAD_LOST
    if found.payload.root_episode_id in excluded:
        return DropReason.EXCLUDED
    if not (math.isfinite(member.advantage) and math.isfinite(member.reward)):
        return DropReason.UNTRAINABLE
    if found.refusal is not None:
        return found.refusal
    if rules.max_sequence_tokens is not None and found.longest_tokens > rules.max_sequence_tokens:
        return DropReason.OVERLONG
    return _staleness(found.policy_versions, lags, rules.max_off_policy_steps)


def _staleness(versions: frozenset[int], lags: Mapping[int, int], limit: int) -> DropReason | None:
    if not versions <= lags.keys():
        return DropReason.OFF_LINEAGE
    return DropReason.STALE if max(lags[version] for version in versions) > limit else None
