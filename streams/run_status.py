"""Records of the run log and of the batches to where each run stands. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from rollbus.schemas.chunks import Chunk
from rollbus.schemas.control import RunCommand
from rollbus.schemas.groups import Group, StepOutcome, TrainingBatch
from rollbus.schemas.steps import PolicyVersion

STATES = {"pause": "paused", "resume": "running", "stop": "stopped"}
"""State after a command; `end_window` changes none."""


@dataclass(frozen=True, slots=True)
class RunStatus:
    """One run, by its log."""

    run_id: str
    state: str = "running"
    """By the last command: running, paused or stopped."""
    groups: int = 0
    batches: int = 0
    answered: int = 0
    """Batches that the trainer has answered."""
    newest_version: int | None = None
    """Policy version after its last completed step."""


def run_statuses(records: Iterable[tuple[str, Any]]) -> dict[str, RunStatus]:
    """Fold (key, record) pairs of both topics; a chunk is a group or a batch too large for one record."""
    found: dict[str, RunStatus] = {}
    seen: set[tuple[str, str]] = set()
    for key, record in records:
        run_id = getattr(record, "run_id", None) or key
        if not run_id or isinstance(record, PolicyVersion) or (mark := _mark(record)) is None:
            continue
        if (run_id, mark) not in seen:
            seen.add((run_id, mark))
            found[run_id] = _after(found.get(run_id) or RunStatus(run_id), record)
    return found


def large(record: Chunk, *, batch: bool) -> Any:
    """Return what stands for a record of which only the chunks are looked at."""
    return ("batch" if batch else "group", record.digest.hex())


def _mark(record: Any) -> str | None:
    """Return what a repeated delivery shares; None for a record that tells nothing of a run."""
    match record:
        case Group():
            return f"group {record.group_id}"
        case TrainingBatch():
            return f"batch {record.batch_hash}"
        case StepOutcome():
            return f"outcome {record.batch_hash}"
        case RunCommand():
            return f"command {record.command_id}"
        case (kind, digest):
            return f"large {kind} {digest}"
    return None


def _after(status: RunStatus, record: Any) -> RunStatus:
    match record:
        case Group() | ("group", _):
            return replace(status, groups=status.groups + 1)
        case TrainingBatch() | ("batch", _):
            return replace(status, batches=status.batches + 1)
        case StepOutcome():
            version = record.policy_version if record.state == "completed" else status.newest_version
            return replace(status, answered=status.answered + 1, newest_version=version)
        case RunCommand():
            return replace(status, state=STATES.get(record.command, status.state))
    return status
