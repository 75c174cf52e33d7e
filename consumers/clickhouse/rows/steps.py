"""The ledger → `steps` (one row per record), `step_members`, `step_outcomes`, `policy_versions`,
`policy_decisions`, `evaluations`."""

from typing import Any

from rollbus.consumers.clickhouse.store.fills import Column, Fill, columns_of, fields
from rollbus.consumers.clickhouse.store.origin import Origin, Rows, optional_time_ms, time_ms
from rollbus.schemas.records.delivery import PolicyDecision
from rollbus.schemas.records.groups import StepOutcome
from rollbus.schemas.records.steps import (
    DroppedMember,
    Evaluation,
    PolicyVersion,
    StepCompleted,
    StepFailed,
    StepSkipped,
    StepStarted,
    TrainedMember,
)

_STATES: dict[type, str] = {
    StepStarted: "started",
    StepCompleted: "completed",
    StepSkipped: "skipped",
    StepFailed: "failed",
}


def _ended_at(record: Any) -> int | None:
    return optional_time_ms(getattr(record, "completed_at_ms", None) or getattr(record, "failed_at_ms", None))


def _field(name: str, absent: Any = None) -> Column:
    """Return a column that holds `absent` for the record types without this field."""
    return lambda record: getattr(record, name, absent)


def _constant(value: Any) -> Column:
    return lambda _: value


STEPS = Fill(
    "steps",
    {
        **fields("run_id", "step", "model", "batch_hash", "batch_number", "base_version"),
        "state": lambda record: _STATES[type(record)],
        "attempt": _field("attempt", 0),
        "policy_version": _field("policy_version"),
        "trained": lambda record: len(getattr(record, "trained", ())),
        "dropped": lambda record: len(getattr(record, "dropped", ())),
        "metrics": lambda record: dict(getattr(record, "metrics", {})),
        "reason": _field("reason"),
        "error_class": _field("error_class"),
        "message": _field("message"),
        "final": lambda record: getattr(record, "final", isinstance(record, StepCompleted | StepSkipped)),
        "started_at": lambda record: optional_time_ms(getattr(record, "started_at_ms", None)),
        "ended_at": _ended_at,
    },
)
STEP_OUTCOMES = Fill("step_outcomes", columns_of(StepOutcome))
POLICY_VERSIONS = Fill("policy_versions", columns_of(PolicyVersion))
"""A change of a version's state comes over two topics and is one row."""
POLICY_DECISIONS = Fill("policy_decisions", columns_of(PolicyDecision, leave_out=("salt",)))
EVALUATIONS = Fill("evaluations", columns_of(Evaluation))
_TRAINED = Fill("step_members", {**columns_of(TrainedMember), "fate": _constant("trained"), "reason": _constant(None)})
_DROPPED = Fill(
    "step_members",
    {
        **dict.fromkeys(_TRAINED.columns, _constant(None)),
        **columns_of(DroppedMember),
        "fate": _constant("dropped"),
    },
)


def step_members(record: StepCompleted | StepSkipped, origin: Origin) -> Rows:
    """Return a row of `step_members` for the fate of every trajectory in a step's batch."""
    step_columns = {
        "run_id": record.run_id,
        "step": record.step,
        "batch_hash": record.batch_hash,
        "ended_at": time_ms(record.completed_at_ms),
    }
    trained_members = record.trained if isinstance(record, StepCompleted) else ()
    version = record.policy_version if isinstance(record, StepCompleted) else None
    rows = [_TRAINED.row(member, origin, **step_columns, policy_version=version) for member in trained_members]
    rows += [_DROPPED.row(member, origin, **step_columns, policy_version=None) for member in record.dropped]
    return [("step_members", row) for row in rows]
