"""What `rollbus trainer status|steps|show` print, read from the topics without disturbing the trainer."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.records.steps import PolicyVersion, StepCompleted, StepFailed, StepSkipped
from rollbus.schemas.topics import RUN_LOG
from rollbus.trainer.ledger.ledger import Ledger, LedgerRecord, StepOnRecord
from rollbus.trainer.ledger.reading_kafka import Pauses, read_ledger, show_committed
from rollbus.trainer.process import open_backend
from rollbus.trainer.settings import ArtServerBackend, TrainerSettings

ClosedStep = StepCompleted | StepSkipped


@dataclass(frozen=True, slots=True)
class TrainerStatus:
    """The state of a run, by its log."""

    run_id: str
    model: str
    closed_steps: int
    completed: int
    open_step: StepOnRecord | None
    head: int | None
    serving: int | None
    last: ClosedStep | None
    last_failure: StepFailed | None
    """The newest failed attempt of the open step, if any."""
    backend_healthy: bool | None
    """None if the backend is in the trainer's process and cannot be asked."""
    paused: str | None = None
    """Why the run takes no batches; None if it takes them."""


def trainer_status(settings: TrainerSettings) -> TrainerStatus:
    """Return the state of the run, and whether its backend takes batches."""
    return asyncio.run(_status(settings))


def list_steps(settings: TrainerSettings, *, last: int | None = None) -> Sequence[ClosedStep]:
    """Return the closed steps of the run, oldest first; only the newest `last` if given."""
    records = asyncio.run(read_ledger(settings.kafka, settings.namespace))
    steps = [record for record in records if isinstance(record, ClosedStep) and record.run_id == settings.run_id]
    return steps if last is None else steps[-last:]


def show_step(settings: TrainerSettings, step: int) -> Sequence[LedgerRecord]:
    """Return every record of one step in order: started, failed, closed, and the version it made."""
    records = asyncio.run(read_ledger(settings.kafka, settings.namespace))
    records_of_step = [record for record in records if record.run_id == settings.run_id and record.step == step]
    if not records_of_step:
        raise ConfigurationError(f"run {settings.run_id!r} has no step {step}; see `rollbus trainer steps`")
    return [
        *(ledger_record for ledger_record in records_of_step if not isinstance(ledger_record, PolicyVersion)),
        *_list_versions(records_of_step),
    ]


async def _status(settings: TrainerSettings) -> TrainerStatus:
    ledger = Ledger(settings.run_id, settings.model)
    last: ClosedStep | None = None
    failure: StepFailed | None = None
    for record in await read_ledger(settings.kafka, settings.namespace):
        ledger.apply(record)
        if isinstance(record, StepCompleted | StepSkipped) and record.run_id == settings.run_id:
            last, failure = record, None
        elif isinstance(record, StepFailed) and record.run_id == settings.run_id:
            failure = record
    healthy: bool | None = None
    if isinstance(settings.backend, ArtServerBackend):
        async with open_backend(settings) as backend:
            healthy = await backend.is_healthy()
    pauses = Pauses(settings.run_id)
    await show_committed(settings.kafka, RUN_LOG.full_name(settings.namespace), pauses)
    pause = pauses.standing
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


def _list_versions(records: Sequence[LedgerRecord]) -> list[LedgerRecord]:
    return [record for record in records if isinstance(record, PolicyVersion)]
