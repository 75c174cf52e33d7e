"""The result of a batch → the records of its step, member by member.

Pure. The outcome names every member of the batch once, as trained or as dropped. What the backend reports as trained
was trained, even if the door decides differently after a crash.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rollbus.schemas.records.drops import Drop, DropReason
from rollbus.schemas.records.groups import GroupMember, StepOutcome, StepState, TrainingBatch
from rollbus.schemas.records.steps import (
    DroppedMember,
    PolicyState,
    PolicyVersion,
    StepCompleted,
    StepSkipped,
    TrainedMember,
)
from rollbus.schemas.topics import DROPS, RUN_LOG, TRAINING_STEPS
from rollbus.trainer.backends.protocol import TrainResult, TrainTrajectory
from rollbus.trainer.ledger.log import Publication, make_announcements
from rollbus.trainer.loop.door import DoorResult

STAGE = "trainer"


@dataclass(frozen=True, slots=True)
class StepFacts:
    """A step that is about to be closed."""

    batch: TrainingBatch
    step: int
    base_version: int
    started_at_ms: int
    completed_at_ms: int


def step_identity(batch: TrainingBatch, step: int) -> dict[str, Any]:
    """Return the fields by which every record of a step names it."""
    return {
        "run_id": batch.run_id,
        "model": batch.model,
        "step": step,
        "batch_hash": batch.batch_hash,
        "batch_number": batch.number,
    }


def record_completed_step(
    facts: StepFacts,
    door: DoorResult,
    result: TrainResult,
    *,
    lags: Mapping[int, int],
    state: PolicyState,
    seconds_outside_backend: float,
) -> tuple[Publication, ...]:
    """Return the records of a step that changed the weights."""
    trained, dropped = split_members(facts.batch, door, result, lags)
    batch = facts.batch
    completed = StepCompleted(
        **step_identity(batch, facts.step),
        base_version=result.base_version,
        policy_version=result.version,
        trained=trained,
        dropped=dropped,
        metrics={
            **result.metrics,
            **step_metrics(batch, trained, dropped),
            "seconds_outside_backend": seconds_outside_backend,
        },
        started_at_ms=facts.started_at_ms,
        completed_at_ms=facts.completed_at_ms,
    )
    version = PolicyVersion(
        model=batch.model,
        version=result.version,
        parent=result.base_version,
        run_id=batch.run_id,
        step=facts.step,
        batch_hash=batch.batch_hash,
        checkpoint=result.checkpoint,
        state=state,
        changed_at_ms=facts.completed_at_ms,
    )
    return (
        Publication(TRAINING_STEPS, batch.run_id, completed),
        *make_announcements(version, batch.run_id),
        Publication(RUN_LOG, batch.run_id, _step_outcome(facts, "completed", result.base_version, result.version)),
        *_drop_records(batch.run_id, dropped, facts),
    )


def record_skipped_step(
    facts: StepFacts, door: DoorResult, result: TrainResult | None, *, reason: str, fallback: DropReason
) -> tuple[Publication, ...]:
    """Return the records of a step that trained nothing; members without a reason of their own get the fallback."""
    batch = facts.batch
    reasons = _reasons_by_trajectory(door, result)
    dropped = tuple(
        _dropped_member(member, group_id, reasons.get(member.trajectory_id, fallback))
        for group_id, member in distinct_members(batch)
    )
    skipped = StepSkipped(
        **step_identity(batch, facts.step),
        base_version=facts.base_version,
        reason=reason,
        dropped=dropped,
        started_at_ms=facts.started_at_ms,
        completed_at_ms=facts.completed_at_ms,
    )
    return (
        Publication(TRAINING_STEPS, batch.run_id, skipped),
        Publication(RUN_LOG, batch.run_id, _step_outcome(facts, "skipped", facts.base_version, facts.base_version)),
        *_drop_records(batch.run_id, dropped, facts),
    )


def split_members(
    batch: TrainingBatch, door: DoorResult, result: TrainResult, lags: Mapping[int, int]
) -> tuple[tuple[TrainedMember, ...], tuple[DroppedMember, ...]]:
    """Give every member of the batch its fate."""
    trained_ids, reasons = frozenset(result.trained_ids), _reasons_by_trajectory(door, result)
    admitted = {trajectory.trajectory_id: trajectory for trajectory in door.admitted}
    trained_members: list[TrainedMember] = []
    dropped_members: list[DroppedMember] = []
    for group_id, member in distinct_members(batch):
        if member.trajectory_id in trained_ids:
            lag = _oldest_lag(member, admitted.get(member.trajectory_id), lags)
            trained_members.append(_trained_member(member, group_id, lag))
        else:
            reason = reasons.get(member.trajectory_id, DropReason.REJECTED_BY_BACKEND)
            dropped_members.append(_dropped_member(member, group_id, reason))
    return tuple(trained_members), tuple(dropped_members)


def distinct_members(batch: TrainingBatch) -> Iterable[tuple[str, GroupMember]]:
    """Yield every member with its group's id; one that is named twice counts once."""
    seen_ids: set[str] = set()
    for group in batch.groups:
        for member in group.members:
            if member.trajectory_id not in seen_ids:
                seen_ids.add(member.trajectory_id)
                yield group.group_id, member


def step_metrics(
    batch: TrainingBatch, trained: tuple[TrainedMember, ...], dropped: tuple[DroppedMember, ...]
) -> dict[str, float]:
    """Return what the trainer itself measures: lags, counts, rewards."""
    rewards = {member.trajectory_id: member.reward for _, member in distinct_members(batch)}
    lags = [member.lag for member in trained]
    metrics: dict[str, float] = {
        "trained": len(trained),
        "dropped": len(dropped),
        "groups": len({member.group_id for member in trained}),
        "sampled_tokens": sum(member.sampled_tokens for member in trained),
    }
    if trained:
        metrics["lag_mean"], metrics["lag_max"] = fmean(lags), max(lags)
        metrics["reward_mean"] = fmean(rewards[member.trajectory_id] for member in trained)
    metrics.update({f"lag_{lag}": count for lag, count in sorted(Counter(lags).items())})
    reasons = Counter(member.reason for member in dropped)
    metrics.update({f"dropped_{reason}": count for reason, count in sorted(reasons.items())})
    return metrics


def _reasons_by_trajectory(door: DoorResult, result: TrainResult | None) -> dict[str, str]:
    backend = dict(result.dropped) if result is not None else {}
    return {**backend, **{member.trajectory_id: member.reason for member in door.dropped}}


def _oldest_lag(member: GroupMember, trajectory: TrainTrajectory | None, lags: Mapping[int, int]) -> int:
    """Return the lag of the oldest turn; by the group's header if the payload is gone."""
    turns = trajectory.turns if trajectory else ()
    versions = {turn.policy_version for turn in turns} or {member.min_policy_version}
    return max(lags.get(version, 0) for version in versions)


def _trained_member(member: GroupMember, group_id: str, lag: int) -> TrainedMember:
    return TrainedMember(
        trajectory_id=member.trajectory_id,
        group_id=group_id,
        lag=lag,
        advantage=member.advantage,
        sampled_tokens=member.sampled_tokens,
    )


def _dropped_member(member: GroupMember, group_id: str, reason: str) -> DroppedMember:
    return DroppedMember(trajectory_id=member.trajectory_id, group_id=group_id, reason=str(reason))


def _step_outcome(facts: StepFacts, state: StepState, base: int, version: int) -> StepOutcome:
    batch = facts.batch
    return StepOutcome(
        run_id=batch.run_id,
        step=facts.step,
        batch_hash=batch.batch_hash,
        batch_number=batch.number,
        state=state,
        base_version=base,
        policy_version=version,
    )


def _drop_records(run_id: str, dropped: Iterable[DroppedMember], facts: StepFacts) -> tuple[Publication, ...]:
    return tuple(
        Publication(
            DROPS,
            member.trajectory_id,
            Drop(
                unit="trajectory",
                unit_id=member.trajectory_id,
                reason=member.reason,
                stage=STAGE,
                run_id=run_id,
                trajectory_ids=(member.trajectory_id,),
                detail=f"step {facts.step}, group {member.group_id}",
                dropped_at_ms=facts.completed_at_ms,
            ),
        )
        for member in dropped
    )
