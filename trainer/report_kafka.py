"""What `rollbus trainer status|steps|show` tell, read from the topics without disturbing the trainer."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from rollbus.schemas.codec import decode
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.steps import PolicyVersion, StepCompleted, StepFailed, StepSkipped
from rollbus.schemas.topics import POLICY_VERSIONS, TRAINING_STEPS
from rollbus.trainer.commands_kafka import paused_by
from rollbus.trainer.ledger import Ledger, LedgerRecord, OpenStep
from rollbus.trainer.process_kafka import backend_of
from rollbus.trainer.reading_kafka import read_all
from rollbus.trainer.settings import ArtServerBackend, TrainerSettings

ClosedStep = StepCompleted | StepSkipped


@dataclass(frozen=True, slots=True)
class TrainerStatus:
    """Where a run stands, by its log."""

    run_id: str
    model: str
    closed_steps: int
    completed: int
    open_step: OpenStep | None
    head: int | None
    serving: int | None
    last: ClosedStep | None
    last_failure: StepFailed | None
    """The newest failed attempt of the step that is open; None where none is."""
    backend_healthy: bool | None
    """None where the backend lives in the trainer's process and cannot be asked."""
    paused: str | None = None
    """Why the run takes no batches; None where it does."""


def trainer_status(settings: TrainerSettings) -> TrainerStatus:
    """Return where the run stands, and whether its backend takes batches."""
    return asyncio.run(_status(settings))


def list_steps(settings: TrainerSettings, *, last: int | None = None) -> Sequence[ClosedStep]:
    """Return the closed steps of the run, oldest first; only the newest `last` where given."""
    records = asyncio.run(ledger_records(settings))
    steps = [each for each in records if isinstance(each, ClosedStep) and each.run_id == settings.run_id]
    return steps if last is None else steps[-last:]


def show_step(settings: TrainerSettings, step: int) -> Sequence[LedgerRecord]:
    """Return every record of one step in order: started, failed, closed, and the version it made."""
    records = asyncio.run(ledger_records(settings))
    found = [each for each in records if each.run_id == settings.run_id and each.step == step]
    if not found:
        raise ConfigurationError(f"run {settings.run_id!r} has no step {step}; see `rollbus trainer steps`")
    return [*(each for each in found if not isinstance(each, PolicyVersion)), *_versions(found)]


async def _status(settings: TrainerSettings) -> TrainerStatus:
    ledger = Ledger(settings.run_id, settings.model)
    last: ClosedStep | None = None
    failure: StepFailed | None = None
    for record in await ledger_records(settings):
        ledger.apply(record)
        if isinstance(record, StepCompleted | StepSkipped) and record.run_id == settings.run_id:
            last, failure = record, None
        elif isinstance(record, StepFailed) and record.run_id == settings.run_id:
            failure = record
    healthy: bool | None = None
    if isinstance(settings.backend, ArtServerBackend):
        async with backend_of(settings) as backend:
            healthy = await backend.is_healthy()
    pause = await paused_by(settings)
    return TrainerStatus(
        run_id=settings.run_id,
        model=settings.model,
        closed_steps=ledger.closed_steps,
        completed=ledger.completed,
        open_step=ledger.open_step,
        head=ledger.lineage.head,
        serving=ledger.lineage.serving,
        last=last,
        last_failure=failure,
        backend_healthy=healthy,
        paused=None if pause is None else pause.comment or "by an operator",
    )


async def ledger_records(settings: TrainerSettings) -> list[LedgerRecord]:
    """Return every record of steps and versions, whichever run and model it is of."""
    names = [topic.full_name(settings.namespace) for topic in (POLICY_VERSIONS, TRAINING_STEPS)]
    return [decode(frame.value) for name in names for frame in await read_all(settings.kafka, name)]


def _versions(records: Sequence[LedgerRecord]) -> list[LedgerRecord]:
    return [each for each in records if isinstance(each, PolicyVersion)]
