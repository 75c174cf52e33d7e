"""What the steps of a run share: its settings, the log, the backend, the ledger; and how a step can fail."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from rollbus.runtime import metrics
from rollbus.runtime.health.alarms.divergence import Metrics
from rollbus.schemas.errors import DataLossError, FencedError
from rollbus.schemas.records.control import RunCommand
from rollbus.schemas.records.steps import StepCompleted, StepSkipped
from rollbus.schemas.topics import POLICY_VERSIONS, TRAINING_STEPS
from rollbus.trainer.backends.protocol import Backend, Capabilities, TrainResult
from rollbus.trainer.ledger.ledger import Ledger
from rollbus.trainer.ledger.log import LastRecords, Publication, TrainerLog
from rollbus.trainer.loop.door import DoorResult
from rollbus.trainer.loop.reading_ahead import ReadingAhead
from rollbus.trainer.settings import TrainerSettings


@dataclass(slots=True)
class StepContext:
    """What a step works with."""

    log: TrainerLog
    ahead: ReadingAhead
    """The batches of the log, and their payload."""
    backend: Backend
    settings: TrainerSettings
    ledger: Ledger
    clock_ms: Callable[[], int]
    wait: Callable[[Awaitable[TrainResult]], Awaitable[TrainResult]]
    """Waits for the backend; raises StoppedWaitingError if the loop is asked to stop meanwhile."""
    free: Callable[[Ledger], bool]
    """Whether the next step may follow the one that is being closed at once."""
    alarm: Callable[[int, Metrics], RunCommand | None]
    """Number and metrics of a step that is being closed → a pause, if training diverged."""
    capabilities: Capabilities | None = None
    """Capabilities of the backend; None until it was asked."""

    @property
    def serves_on_request(self) -> bool:
        """Whether an update serves its own version: if versions are served at once, and the backend can do so."""
        return self.settings.serve_at_once and self.capabilities is not None and self.capabilities.serves_on_request

    async def publish(
        self,
        publications: Sequence[Publication],
        *,
        last: LastRecords | None = None,
        next_offset: int | None = None,
    ) -> Sequence[Publication]:
        """Write to the log, then apply the same records to the ledger; return them."""
        written_records = await self.log.publish(publications, last=last, next_offset=next_offset)
        for publication in written_records:
            if publication.topic in (POLICY_VERSIONS, TRAINING_STEPS):
                self.ledger.apply(publication.record)
            _measure(publication.record)
        return written_records


def _measure(record: object) -> None:
    """Count a closed step for Prometheus."""
    if isinstance(record, StepCompleted | StepSkipped):
        outcome = "completed" if isinstance(record, StepCompleted) else "skipped"
        metrics.STEPS.labels(record.run_id, outcome).inc()
        metrics.STEP_SECONDS.labels(record.run_id).observe((record.completed_at_ms - record.started_at_ms) / 1000)
    if isinstance(record, StepCompleted) and (reward := record.metrics.get("reward_mean")) is not None:
        metrics.REWARD.labels(record.run_id).set(reward)


class StepFailureError(Exception):
    """The backend failed in a step; `error` is what it raised."""

    def __init__(self, error: Exception, door: DoorResult) -> None:
        super().__init__(str(error))
        self.error = error
        self.door = door

    @property
    def retriable(self) -> bool:
        """False only if the error says that trying again gives the same answer."""
        return bool(getattr(self.error, "retriable", True))


class StoppedWaitingError(Exception):
    """The loop was asked to stop while it waited."""


@asynccontextmanager
async def failing_the_step(door: DoorResult) -> AsyncIterator[None]:
    """Mark errors of the backend: they fail the step, while errors of the log reopen the log."""
    try:
        yield
    except (StoppedWaitingError, FencedError):
        raise
    except Exception as error:
        raise StepFailureError(error, door) from error


def heads_differ(ledger: Ledger, backend_head: int) -> DataLossError:
    """Return the error for a backend whose head differs from the log's."""
    return DataLossError(
        f"step {ledger.closed_steps + 1} of run {ledger.run_id!r} starts from version {ledger.lineage.head} by the "
        f"log, but the backend's head is version {backend_head}; if its folder was replaced or another trainer used "
        "it, roll one of them back with `rollbus policy rollback`"
    )
