"""Decide which members of a batch are trained: member and inspected payload → `TrainTrajectory`, or a drop and why.

Pure, and the last check before the backend: what would spoil the weights silently is refused here. A group that loses
members keeps its recorded advantages; computed again, they would favour the members that remain.

What one source, such as a user, has of a batch is bounded: who writes most must not decide alone what is learnt. A
source is the value of a label. Episodes without the label are one source together, so to leave it out helps nobody.
"""

import math
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rollbus.schemas.records.drops import DropReason
from rollbus.schemas.records.groups import Group, GroupMember, TrainingBatch
from rollbus.schemas.records.steps import DroppedMember
from rollbus.schemas.records.trajectories import Trajectory
from rollbus.schemas.shares import share_of
from rollbus.trainer.backends.protocol import TrainTrajectory, TurnTokens
from rollbus.trainer.loop.inspection import Inspected

PRINCIPAL = "principal"
"""Among the sources of a share: whose token signed the episode; no label of this name counts."""


@dataclass(frozen=True, slots=True)
class DoorRules:
    """What a member must keep to."""

    max_off_policy_steps: int
    max_sequence_tokens: int | None = None
    """Longest history that the backend takes; None if it does not say."""
    max_share_per_source: Mapping[str, float] = field(default_factory=dict)
    """By label: most of a batch that the episodes with one value of it may be."""
    trains_text: bool = False
    """Whether the backend trains on messages: then tokens, their age and differing rewards do not matter."""


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
    seen_ids: set[str] = set()
    for group in batch.groups:
        trajectories, lost_members = _check_group(group, payloads, seen_ids, lags=lags, excluded=excluded, rules=rules)
        admitted.extend(trajectories)
        dropped.extend(lost_members)
    while over := _find_over_share(
        [_sources_of(payloads[trajectory.trajectory_id].payload) for trajectory in admitted], rules.max_share_per_source
    ):
        dropped += _drop(
            [trajectory for position, trajectory in enumerate(admitted) if position in over], DropReason.SOURCE_SHARE
        )
        trajectories_left = [trajectory for position, trajectory in enumerate(admitted) if position not in over]
        admitted = trajectories_left if rules.trains_text else _with_signal(trajectories_left)
        groups = {trajectory.group_id for trajectory in admitted}
        dropped += _drop(
            [trajectory for trajectory in trajectories_left if trajectory.group_id not in groups], DropReason.NO_SIGNAL
        )
    return DoorResult(tuple(admitted), tuple(dropped))


def _find_over_share(labels: Sequence[Mapping[str, str]], shares: Mapping[str, float]) -> frozenset[int]:
    """Return the positions, each given by its labels, that must go for all of the shares to be kept."""
    positions_over: set[int] = set()
    settled = False
    while not settled:
        settled = True
        for label, share in sorted(shares.items()):
            positions_left = [position for position in range(len(labels)) if position not in positions_over]
            excess = _find_excess([labels[position].get(label, "") for position in positions_left], share)
            positions_over.update(positions_left[position] for position in excess)
            settled = settled and not excess
    return frozenset(positions_over)


def _find_excess(sources: Sequence[str], share: float) -> list[int]:
    """Return the positions that must go so that no source has more than its share of the rest; its first ones stay.

    A batch with fewer than 1 / share sources cannot keep to that: it loses all.
    """
    counts = Counter(sources)
    most = max(counts.values(), default=0)
    while most > share_of(share, sum(min(count, most) for count in counts.values())):
        most -= 1
    places: Counter[str] = Counter()
    excess = []
    for position, source in enumerate(sources):
        places[source] += 1
        if places[source] > most:
            excess.append(position)
    return excess


def _with_signal(trajectories: Sequence[TrainTrajectory]) -> list[TrainTrajectory]:
    groups = {trajectory.group_id for trajectory in trajectories if any(trajectory.advantages)}
    return [trajectory for trajectory in trajectories if trajectory.group_id in groups]


def _drop(trajectories: Iterable[TrainTrajectory], reason: DropReason) -> list[DroppedMember]:
    return [
        DroppedMember(trajectory_id=trajectory.trajectory_id, group_id=trajectory.group_id, reason=str(reason))
        for trajectory in trajectories
    ]


def _sources_of(payload: Trajectory) -> dict[str, str]:
    """Return by what an episode's share is counted: its labels, which are its producer's word, and who signed it."""
    return {**payload.labels, PRINCIPAL: payload.principal}


def _check_group(
    group: Group,
    payloads: Mapping[str, Inspected],
    seen_ids: set[str],
    *,
    lags: Mapping[int, int],
    excluded: Container[str],
    rules: DoorRules,
) -> tuple[list[TrainTrajectory], list[DroppedMember]]:
    trajectories: list[TrainTrajectory] = []
    lost_members: list[DroppedMember] = []
    for member in group.members:
        if member.trajectory_id in seen_ids:
            continue  # a member named twice has one fate
        seen_ids.add(member.trajectory_id)
        inspected = payloads.get(member.trajectory_id)
        reason = _find_refusal(member, inspected, lags=lags, excluded=excluded, rules=rules)
        if reason is None and inspected is not None:
            trajectories.append(
                TrainTrajectory(
                    trajectory_id=member.trajectory_id,
                    group_id=group.group_id,
                    advantage=member.advantage,
                    reward=member.reward,
                    turns=_trained_turns(inspected, member),
                )
            )
        else:
            lost_members.append(
                DroppedMember(trajectory_id=member.trajectory_id, group_id=group.group_id, reason=str(reason))
            )
    if rules.trains_text or _with_signal(trajectories):
        return trajectories, lost_members
    return [], lost_members + _drop(trajectories, DropReason.NO_SIGNAL)


def _trained_turns(inspected: Inspected, member: GroupMember) -> tuple[TurnTokens, ...]:
    """Return the turns that are trained, each with its advantage if it has its own, and with its hint."""
    by_turn, hints = member.turn_advantages, inspected.hints
    if not by_turn and not hints:
        return inspected.turns
    return tuple(
        replace(
            turn,
            advantage=by_turn.get(turn_id, member.advantage) if by_turn else None,
            hint=hints.get(turn_id, ""),
        )
        for turn_id, turn in zip(inspected.turn_ids, inspected.turns, strict=True)
    )


def _find_refusal(
    member: GroupMember,
    inspected: Inspected | None,
    *,
    lags: Mapping[int, int],
    excluded: Container[str],
    rules: DoorRules,
) -> DropReason | None:
    """Return the first reason against a member, the final ones first; None admits it."""
    if member.episode_id in excluded:
        return DropReason.EXCLUDED
    if inspected is None:
        return DropReason.PAYLOAD_LOST
    if inspected.payload.root_episode_id in excluded:
        return DropReason.EXCLUDED
    if not all(map(math.isfinite, (member.advantage, member.reward, *member.turn_advantages.values()))):
        return DropReason.UNTRAINABLE
    if rules.trains_text:
        return None
    if inspected.refusal is not None:
        return inspected.refusal
    if rules.max_sequence_tokens is not None and inspected.longest_tokens > rules.max_sequence_tokens:
        return DropReason.OVERLONG
    return _check_staleness(inspected.policy_versions, lags, rules.max_off_policy_steps)


def _check_staleness(versions: frozenset[int], lags: Mapping[int, int], limit: int) -> DropReason | None:
    if not versions <= lags.keys():
        return DropReason.OFF_LINEAGE
    return DropReason.STALE if max(lags[version] for version in versions) > limit else None
