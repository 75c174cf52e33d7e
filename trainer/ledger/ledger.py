"""`training-steps` and `policy-versions` → the next step, the open one, and the batches that are done.

Pure. One transaction writes a step's closing record, its version and the offset of its batch, so these records never
contradict each other. If they do, records were lost or written by hand, and the trainer stops.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from rollbus.schemas.errors import DataLossError
from rollbus.schemas.records.groups import TrainingBatch
from rollbus.schemas.records.steps import PolicyVersion, StepCompleted, StepFailed, StepSkipped, StepStarted
from rollbus.trainer.ledger.lineage import Lineage

LedgerRecord = StepStarted | StepCompleted | StepSkipped | StepFailed | PolicyVersion


@dataclass(frozen=True, slots=True)
class StepOnRecord:
    """A step that was started and has no outcome yet."""

    step: int
    attempt: int
    batch_hash: str
    base_version: int


@dataclass(frozen=True, slots=True)
class AlreadyDone:
    """The batch has its step: only the offset must be committed."""

    step: int


@dataclass(frozen=True, slots=True)
class RunStep:
    """Train the batch as this step, from these weights."""

    step: int
    attempt: int
    base_version: int
    ask_journal: bool
    """True if an earlier attempt may have reached the backend, whose journal then has its result."""


@dataclass(slots=True)
class Ledger:
    """One run's steps and its model's versions; changed by `apply` alone."""

    run_id: str
    model: str
    closed_steps: int = 0
    """Number of the last completed or skipped step; the next is one more."""
    open_step: StepOnRecord | None = None
    attempts: int = 0
    """Number of the last attempt of the next step, started or failed before it could start."""
    under_way: bool = False
    """Whether that attempt was started, and has not failed by the log."""
    done: dict[str, int] = field(default_factory=dict)
    """Batch hash → step."""
    completed: int = 0
    skipped_in_a_row: int = 0
    skipped_reasons: Counter[str] = field(default_factory=Counter)
    """Why the members of those steps were not trained, each with their number."""
    last_completed: StepCompleted | None = None
    lineage: Lineage = field(default_factory=Lineage)

    @classmethod
    def fold(cls, run_id: str, model: str, records: Iterable[LedgerRecord]) -> "Ledger":
        """Return the ledger of these records of the log."""
        ledger = cls(run_id, model)
        for record in records:
            ledger.apply(record)
        return ledger

    def apply(self, record: LedgerRecord) -> None:
        """Apply the next record of the log; ignore other runs and models."""
        if isinstance(record, PolicyVersion):
            if record.model == self.model:
                self.lineage.apply(record)
        elif record.run_id != self.run_id:
            return
        elif isinstance(record, StepStarted):
            self._start(record)
        elif isinstance(record, StepFailed):
            self._fail(record)
        elif isinstance(record, StepCompleted | StepSkipped):
            self._close(record)

    @property
    def attempt(self) -> int:
        """Number of the attempt that would fail now."""
        return self.attempts if self.under_way else self.attempts + 1

    def decide(self, batch: TrainingBatch) -> AlreadyDone | RunStep:
        """Decide what to do with the batch; raise DataLossError if it contradicts the ledger."""
        if (step := self.done.get(batch.batch_hash)) is not None:
            return AlreadyDone(step)
        if (base := self.lineage.head) is None:
            raise DataLossError(f"no policy version of model {self.model!r} is on record, so step 1 has no base")
        open_step = self.open_step
        if open_step is None:
            return RunStep(self.closed_steps + 1, self.attempts + 1, base, ask_journal=False)
        if open_step.batch_hash != batch.batch_hash:
            raise DataLossError(
                f"step {open_step.step} of run {self.run_id!r} was started with batch {open_step.batch_hash}, "
                f"but next is batch {batch.number} ({batch.batch_hash}); "
                "the offset was moved past an open step: move it back"
            )
        return RunStep(open_step.step, self.attempts + 1, base, ask_journal=True)

    def _start(self, record: StepStarted) -> None:
        self._check_number(record.step, "started")
        self.open_step = StepOnRecord(record.step, record.attempt, record.batch_hash, record.base_version)
        self.attempts, self.under_way = record.attempt, True

    def _fail(self, record: StepFailed) -> None:
        if record.step == self.closed_steps + 1:
            self.attempts, self.under_way = max(self.attempts, record.attempt), False

    def _close(self, record: StepCompleted | StepSkipped) -> None:
        if self.done.get(record.batch_hash) == record.step:
            return
        self._check_number(record.step, "closed")
        self.closed_steps = record.step
        self.done[record.batch_hash] = record.step
        self.open_step = None
        self.attempts, self.under_way = 0, False
        if isinstance(record, StepCompleted):
            self.completed += 1
            self.last_completed = record
            self.skipped_in_a_row = 0
            self.skipped_reasons.clear()
        else:
            self.skipped_in_a_row += 1
            self.skipped_reasons.update(member.reason for member in record.dropped)

    def _check_number(self, step: int, what: str) -> None:
        if step != self.closed_steps + 1:
            raise DataLossError(
                f"run {self.run_id!r}: step {step} was {what} after step {self.closed_steps}; records of the topic "
                "training-steps are missing or were written by hand"
            )
