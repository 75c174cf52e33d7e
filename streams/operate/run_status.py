"""Records of the run log and of the batches become the status of each run. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from rollbus.schemas.records.control import ConfigApplied, RunCommand
from rollbus.schemas.records.groups import Group, StepOutcome, TrainingBatch
from rollbus.schemas.records.steps import PolicyVersion

STATES = {"pause": "paused", "resume": "running", "stop": "stopped", "removed": "removed"}
"""State after a command; `end_window` changes none."""


@dataclass(frozen=True, slots=True)
class RunStatus:
    """One run, by its log."""

    run_id: str
    state: str = "running"
    """By the last command: running, paused, stopped or removed. A run that is removed and back has the one before."""
    groups: int = 0
    batches: int = 0
    answered: int = 0
    """Batches that the trainer has answered."""
    newest_version: int | None = None
    """Policy version after its last completed step."""


def run_statuses(records: Iterable[tuple[str, Any]]) -> dict[str, RunStatus]:
    """Fold (key, record) pairs of both topics."""
    statuses: dict[str, RunStatus] = {}
    seen_records: set[tuple[str, str]] = set()
    commanded: dict[str, str] = {}
    """State by the last command of somebody; a run that is back in the settings goes on in it."""
    for key, record in records:
        run_id = getattr(record, "run_id", None) or key
        if isinstance(record, ConfigApplied) and run_id in statuses and statuses[run_id].state == STATES["removed"]:
            statuses[run_id] = replace(statuses[run_id], state=commanded.get(run_id, "running"))
        if not run_id or isinstance(record, PolicyVersion) or (identity := _identity_of(record)) is None:
            continue
        if (run_id, identity) not in seen_records:
            seen_records.add((run_id, identity))
            statuses[run_id] = _status_after(statuses.get(run_id) or RunStatus(run_id), record)
            if statuses[run_id].state != STATES["removed"]:
                commanded[run_id] = statuses[run_id].state
    return statuses


def _identity_of(record: Any) -> str | None:
    """Return what a repeated delivery has in common; None for a record without effect on a status."""
    match record:
        case Group():
            return f"group {record.group_id}"
        case TrainingBatch():
            return f"batch {record.batch_hash}"
        case StepOutcome():
            return f"outcome {record.batch_hash}"
        case RunCommand():
            return f"command {record.command_id}"
    return None


def _status_after(status: RunStatus, record: Any) -> RunStatus:
    match record:
        case Group():
            return replace(status, groups=status.groups + 1)
        case TrainingBatch():
            return replace(status, batches=status.batches + 1)
        case StepOutcome():
            version = record.policy_version if record.state == "completed" else status.newest_version
            return replace(status, answered=status.answered + 1, newest_version=version)
        case RunCommand():
            return replace(status, state=STATES.get(record.command, status.state))
    return status
