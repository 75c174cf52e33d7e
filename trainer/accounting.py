"""Turn what the backend did with a batch into the records that say so: the outcome of a step, member by member.

Pure. Every member of the batch stands in the outcome once, as trained or as dropped; what the backend reports as
trained was trained, whatever the door says when it looks again after a crash.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from rollbus.schemas.drops import Drop, DropReason
from rollbus.schemas.groups import GroupMember, StepOutcome, StepState, TrainingBatch
from rollbus.schemas.steps import (
    DroppedMember,
    PolicyState,
    PolicyVersion,
    StepCompleted,
    StepSkipped,
    TrainedMember,
)
from rollbus.schemas.topics import DROPS, POLICY_VERSIONS, RUN_LOG, TRAINING_STEPS
from rollbus.trainer.backends.protocol import TrainResult, TrainTrajectory
from rollbus.trainer.door import DoorResult
from rollbus.trainer.log import Publication

STAGE = "trainer"


@dataclass(frozen=True, slots=True)
class StepFacts:
    """A step that is about to be closed."""

    batch: TrainingBatch
    step: int
    base_version: int
    started_at_ms: int
    completed_at_ms: int


def completed_step(
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
        run_id=batch.run_id,
        model=batch.model,
        step=facts.step,
        batch_hash=batch.batch_hash,
        batch_number=batch.number,
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
        Publication(POLICY_VERSIONS, batch.model, version),
        Publication(RUN_LOG, batch.run_id, version),
        Publication(RUN_LOG, batch.run_id, _outcome(facts, "completed", result.base_version, result.version)),
        *_drops(batch.run_id, dropped, facts),
    )


def skipped_step(
    facts: StepFacts, door: DoorResult, result: TrainResult | None, *, reason: str, fallback: DropReason
) -> tuple[Publication, ...]:
    """Return the records of a step that trained nothing; members without a reason of their own get the fallback."""
    batch = facts.batch
    reasons = _reasons(door, result)
    dropped = tuple(
        _dropped(member, group_id, reasons.get(member.trajectory_id, fallback))
        for group_id, member in members_of(batch)
    )
    skipped = StepSkipped(
        run_id=batch.run_id,
        model=batch.model,
        step=facts.step,
        batch_hash=batch.batch_hash,
        batch_number=batch.number,
        base_version=facts.base_version,
        reason=reason,
        dropped=dropped,
        started_at_ms=facts.started_at_ms,
        completed_at_ms=facts.completed_at_ms,
    )
    return (
        Publication(TRAINING_STEPS, batch.run_id, skipped),
        Publication(RUN_LOG, batch.run_id, _outcome(facts, "skipped", facts.base_version, facts.base_version)),
        *_drops(batch.run_id, dropped, facts),
    )


def split_members(
    batch: TrainingBatch, door: DoorResult, result: TrainResult, lags: Mapping[int, int]
) -> tuple[tuple[TrainedMember, ...], tuple[DroppedMember, ...]]:
    """Give every member of the batch its fate."""
    trained_ids, reasons = frozenset(result.trained_ids), _reasons(door, result)
    admitted = {trajectory.trajectory_id: trajectory for trajectory in door.admitted}
    trained: list[TrainedMember] = []
    dropped: list[DroppedMember] = []
    for group_id, member in members_of(batch):
        if member.trajectory_id in trained_ids:
            lag = _lag(member, admitted.get(member.trajectory_id), lags)
            trained.append(_trained(member, group_id, lag))
        else:
            reason = reasons.get(member.trajectory_id, DropReason.REJECTED_BY_BACKEND)
            dropped.append(_dropped(member, group_id, reason))
    return tuple(trained), tuple(dropped)


def members_of(batch: TrainingBatch) -> Iterable[tuple[str, GroupMember]]:
    """Every member with its group's id; one that is named twice counts where it stands first."""
    seen: set[str] = set()
    for group in batch.groups:
        for member in group.members:
            if member.trajectory_id not in seen:
                seen.add(member.trajectory_id)
                yield group.group_id, member


def step_metrics(
    batch: TrainingBatch, trained: tuple[TrainedMember, ...], dropped: tuple[DroppedMember, ...]
) -> dict[str, float]:
    """What the trainer itself measures: lags, counts, rewards."""
    rewards = {member.trajectory_id: member.reward for _, member in members_of(batch)}
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


def _reasons(door: DoorResult, result: TrainResult | None) -> dict[str, str]:
    backend = dict(result.dropped) if result is not None else {}
    return {**backend, **{member.trajectory_id: member.reason for member in door.dropped}}


def _lag(member: GroupMember, trajectory: TrainTrajectory | None, lags: Mapping[int, int]) -> int:
    """Lag of the oldest turn; by the group's header where the payload is gone by now."""
    versions = {turn.policy_version for turn in trajectory.turns} if trajectory else {member.min_policy_version}
    return max(lags.get(version, 0) for version in versions)


def _trained(member: GroupMember, group_id: str, lag: int) -> TrainedMember:
    return TrainedMember(
        trajectory_id=member.trajectory_id,
        group_id=group_id,
        lag=lag,
        advantage=member.advantage,
        sampled_tokens=member.sampled_tokens,
    )


def _dropped(member: GroupMember, group_id: str, reason: str) -> DroppedMember:
    return DroppedMember(trajectory_id=member.trajectory_id, group_id=group_id, reason=str(reason))


def _outcome(facts: StepFacts, state: StepState, base: int, version: int) -> StepOutcome:
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


def _drops(run_id: str, dropped: Iterable[DroppedMember], facts: StepFacts) -> tuple[Publication, ...]:
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
