"""The ledger → `steps` (one row per record), `step_members`, `policy_versions`, `evaluations`."""

from typing import Any

from rollbus.consumers.clickhouse.origin import Origin, Row, Rows, time_ms
from rollbus.schemas.groups import StepOutcome
from rollbus.schemas.steps import (
    DroppedMember,
    Evaluation,
    PolicyVersion,
    StepCompleted,
    StepFailed,
    StepSkipped,
    StepStarted,
    TrainedMember,
)

AnyStep = StepStarted | StepCompleted | StepSkipped | StepFailed


def step_started(record: StepStarted, origin: Origin) -> Rows:
    """Return the attempt that began."""
    return [_step(record, "started", origin, attempt=record.attempt, started_at=time_ms(record.started_at_ms))]


def step_completed(record: StepCompleted, origin: Origin) -> Rows:
    """Return the step and the fate of every trajectory in its batch."""
    step = _step(
        record,
        "completed",
        origin,
        policy_version=record.policy_version,
        trained=len(record.trained),
        dropped=len(record.dropped),
        metrics=dict(record.metrics),
        final=True,
        started_at=time_ms(record.started_at_ms),
        ended_at=time_ms(record.completed_at_ms),
    )
    trained = [_trained(record, member, origin) for member in record.trained]
    return [step, *trained, *(_dropped(record, member, origin) for member in record.dropped)]


def step_skipped(record: StepSkipped, origin: Origin) -> Rows:
    """Return the step that trained nothing, and what it dropped."""
    step = _step(
        record,
        "skipped",
        origin,
        dropped=len(record.dropped),
        reason=record.reason,
        final=True,
        started_at=time_ms(record.started_at_ms),
        ended_at=time_ms(record.completed_at_ms),
    )
    return [step, *(_dropped(record, member, origin) for member in record.dropped)]


def step_failed(record: StepFailed, origin: Origin) -> Rows:
    """Return the attempt that failed."""
    step = _step(
        record,
        "failed",
        origin,
        attempt=record.attempt,
        error_class=record.error_class,
        message=record.message,
        final=record.final,
        ended_at=time_ms(record.failed_at_ms),
    )
    return [step]


def _step(record: AnyStep, state: str, origin: Origin, **columns: Any) -> tuple[str, Row]:
    absent: Row = {
        "attempt": 0,
        "policy_version": None,
        "trained": 0,
        "dropped": 0,
        "metrics": {},
        "reason": None,
        "error_class": None,
        "message": None,
        "final": False,
        "started_at": None,
        "ended_at": None,
    }
    row = origin.row(
        run_id=record.run_id,
        step=record.step,
        state=state,
        model=record.model,
        batch_hash=record.batch_hash,
        batch_number=record.batch_number,
        base_version=record.base_version,
        **(absent | columns),
    )
    return "steps", row


def _trained(record: StepCompleted, member: TrainedMember, origin: Origin) -> tuple[str, Row]:
    return "step_members", origin.row(
        run_id=record.run_id,
        step=record.step,
        batch_hash=record.batch_hash,
        group_id=member.group_id,
        trajectory_id=member.trajectory_id,
        fate="trained",
        reason=None,
        lag=member.lag,
        advantage=member.advantage,
        sampled_tokens=member.sampled_tokens,
        policy_version=record.policy_version,
        ended_at=time_ms(record.completed_at_ms),
    )


def _dropped(record: StepCompleted | StepSkipped, member: DroppedMember, origin: Origin) -> tuple[str, Row]:
    return "step_members", origin.row(
        run_id=record.run_id,
        step=record.step,
        batch_hash=record.batch_hash,
        group_id=member.group_id,
        trajectory_id=member.trajectory_id,
        fate="dropped",
        reason=member.reason,
        lag=None,
        advantage=None,
        sampled_tokens=None,
        policy_version=None,
        ended_at=time_ms(record.completed_at_ms),
    )


def step_outcome(record: StepOutcome, origin: Origin) -> Rows:
    """Return the answer that the curriculum saw."""
    row = origin.row(
        run_id=record.run_id,
        step=record.step,
        batch_hash=record.batch_hash,
        batch_number=record.batch_number,
        state=record.state,
        base_version=record.base_version,
        policy_version=record.policy_version,
    )
    return [("step_outcomes", row)]


def policy_version(record: PolicyVersion, origin: Origin) -> Rows:
    """Return one change of a version's state; it comes over two topics and is one row."""
    row = origin.row(
        model=record.model,
        version=record.version,
        parent=record.parent,
        run_id=record.run_id,
        step=record.step,
        batch_hash=record.batch_hash,
        checkpoint=record.checkpoint,
        state=record.state,
        reason=record.reason,
        changed_at=time_ms(record.changed_at_ms),
    )
    return [("policy_versions", row)]


def evaluation(record: Evaluation, origin: Origin) -> Rows:
    """Return one measurement."""
    row = origin.row(
        evaluation_id=record.evaluation_id,
        model=record.model,
        policy_version=record.policy_version,
        run_id=record.run_id,
        name=record.name,
        episodes=record.episodes,
        metrics=dict(record.metrics),
        seed=record.seed,
        set_hash=record.set_hash,
        evaluated_at=time_ms(record.evaluated_at_ms),
    )
    return [("evaluations", row)]
