"""One batch → one closed step: payload, door, backend, outcome.

The order that makes delivery safe is written at `train_batch`. A crash between any two lines of it is repaired by
running it again: the backend knows the batch by its hash, the ledger knows the step by its records.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from rollbus.schemas.drops import DropReason
from rollbus.schemas.errors import DataLossError, FencedError
from rollbus.schemas.groups import TrainingBatch
from rollbus.schemas.steps import PolicyState, StepFailed, StepStarted
from rollbus.schemas.topics import POLICY_VERSIONS, TRAINING_STEPS
from rollbus.trainer.accounting import StepFacts, completed_step, members_of, skipped_step
from rollbus.trainer.alarm import AlarmLimits
from rollbus.trainer.backends.protocol import Backend, Capabilities, TrainConfig, TrainRequest, TrainResult
from rollbus.trainer.door import DoorResult, DoorRules, check_batch
from rollbus.trainer.ledger import Ledger, RunStep
from rollbus.trainer.log import NextBatch, Publication, TrainerLog
from rollbus.trainer.promotion import PromotionRule

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """What the loop must know of the run."""

    run_id: str
    model: str
    train: TrainConfig = field(default_factory=TrainConfig)
    max_off_policy_steps: int = 4
    serve_at_once: bool = True
    """False leaves a new version a candidate until an operator promotes it."""
    retry_pauses_s: tuple[float, ...] = (2.0, 15.0, 60.0)
    """A failed step is tried again after each; then the run stops."""
    skip_rejected: bool = False
    """True drops a batch that the backend refuses; False stops the run."""
    max_skipped_in_a_row: int = 10
    promote_if: PromotionRule | None = None
    """Serve a candidate that passes; None leaves it to an operator."""
    alarm: AlarmLimits | None = None
    """Pause the run where these are passed; None never does."""
    poll_interval_s: float = 0.5
    batch_wait_s: float = 1.0
    """How long one look for a batch takes."""
    finish_on_stop: bool = False
    """True waits for the running update on a stop: for backends that live in this process."""


class StepFailureError(Exception):
    """The backend failed in a step; `error` is what it raised."""

    def __init__(self, error: Exception, door: DoorResult) -> None:
        super().__init__(str(error))
        self.error = error
        self.door = door

    @property
    def retriable(self) -> bool:
        """False only where the error says that trying again gives the same answer."""
        return bool(getattr(self.error, "retriable", True))


@dataclass(slots=True)
class StepContext:
    """What a step works with."""

    log: TrainerLog
    backend: Backend
    settings: LoopSettings
    ledger: Ledger
    clock_ms: Callable[[], int]
    wait: Callable[[Awaitable[TrainResult]], Awaitable[TrainResult]]
    """Waits for the backend; raises where the loop is asked to stop meanwhile."""
    capabilities: Capabilities | None = None
    """Of the backend; None until it was asked."""

    async def publish(self, publications: tuple[Publication, ...], *, next_offset: int | None = None) -> None:
        """Write to the log, then take the same records into the ledger."""
        await self.log.publish(publications, next_offset=next_offset)
        for publication in publications:
            if publication.topic in (POLICY_VERSIONS, TRAINING_STEPS):
                self.ledger.apply(publication.record)


async def train_batch(
    context: StepContext, following: NextBatch, decision: RunStep, *, head: int | None = None
) -> None:
    """Close one step; `head` is where the backend stands, if it was asked just now.

    1. An earlier attempt: ask the journal; what it holds has happened and is not submitted again.
    2. StepStarted, alone in a transaction: from here on the journal may hold the batch.
    3. Payload by location and the door, beside 2 since neither touches the backend; after both, submit by batch hash,
       wait.
    4. Let the backend serve the new version, so that it is announced only once it answers.
    5. One transaction: the step's record, version, outcome and drops, and the offset of the batch.
    """
    batch, began, started_ms = following.batch, time.perf_counter(), context.clock_ms()
    result = await _recorded_result(context, batch, decision, head)
    base = result.base_version if result is not None else decision.base_version
    lags = context.ledger.lineage.lags(base)
    if result is None:
        starting = asyncio.create_task(context.publish((_started(batch, decision, started_ms),)))
        try:
            door = await _through_door(context, batch, lags)
        finally:
            await starting
    else:
        door = await _through_door(context, batch, lags)
    prepared = time.perf_counter()
    async with _backend_failures(door):
        if result is None and door.admitted:
            await context.backend.submit(_request(context, batch, base, door))
            waiting = context.backend.wait(batch.batch_hash, context.settings.poll_interval_s)
            result = await context.wait(waiting)
    if result is not None and result.base_version != base:
        raise DataLossError(
            f"the backend trained batch {batch.batch_hash} before, from version {result.base_version} to "
            f"{result.version}, and the log of run {batch.run_id!r} does not know of it (it starts from {base}); "
            "give the run another id, or the backend an empty folder"
        )
    async with _backend_failures(door):
        if result is not None and result.state == "completed" and context.settings.serve_at_once:
            await context.backend.promote(result.version)
    seconds_outside = prepared - began
    facts = StepFacts(batch, decision.step, base, started_ms, context.clock_ms())
    if result is None or result.state == "skipped":
        reason = "the door admitted nothing" if result is None else "the backend found nothing to train"
        publications = skipped_step(facts, door, result, reason=reason, fallback=DropReason.REJECTED_BY_BACKEND)
    else:
        state: PolicyState = "serving" if context.settings.serve_at_once else "candidate"
        publications = completed_step(
            facts, door, result, lags=lags, state=state, seconds_outside_backend=seconds_outside
        )
    await context.publish(publications, next_offset=following.next_offset)
    logger.info(
        "step %d run=%s base=%d version=%s batch=%s",
        *(decision.step, batch.run_id, base, result.version if result else base, batch.batch_hash),
    )


async def record_failure(context: StepContext, batch: TrainingBatch, failure: StepFailureError, *, final: bool) -> None:
    """Write down that an attempt failed."""
    opened = context.ledger.open_step
    record = StepFailed(
        run_id=batch.run_id,
        model=batch.model,
        step=opened.step if opened else context.ledger.closed_steps + 1,
        attempt=opened.attempt if opened else 1,
        batch_hash=batch.batch_hash,
        batch_number=batch.number,
        base_version=opened.base_version if opened else context.ledger.lineage.head or 0,
        error_class=type(failure.error).__name__,
        message=str(failure.error),
        final=final,
        failed_at_ms=context.clock_ms(),
    )
    await context.publish((Publication(TRAINING_STEPS, batch.run_id, record),))


async def skip_rejected(context: StepContext, following: NextBatch, failure: StepFailureError) -> None:
    """Close the open step of a batch that the backend refuses, with every member dropped."""
    opened = context.ledger.open_step
    if opened is None:
        raise DataLossError(f"batch {following.batch.batch_hash} was refused, but no step is open for it")
    now_ms = context.clock_ms()
    facts = StepFacts(following.batch, opened.step, opened.base_version, now_ms, now_ms)
    publications = skipped_step(
        facts,
        failure.door,
        None,
        reason=f"the backend refused it: {failure.error}",
        fallback=DropReason.REJECTED_BY_BACKEND,
    )
    await context.publish(publications, next_offset=following.next_offset)


async def _recorded_result(
    context: StepContext, batch: TrainingBatch, decision: RunStep, head: int | None
) -> TrainResult | None:
    """What an earlier attempt did, if there was one; without it, make sure that the backend stands at our base."""
    async with _backend_failures(DoorResult((), ())):
        result = await context.backend.journal(batch.batch_hash) if decision.ask_journal else None
        if result is not None:
            return result
        if head is None or decision.ask_journal:
            head = (await context.backend.versions()).head
        if head == decision.base_version:
            return None
        if decision.ask_journal and (late := await context.backend.journal(batch.batch_hash)) is not None:
            return late  # the running update ended between the two questions
    raise heads_differ(context.ledger, head)


def heads_differ(ledger: Ledger, backend_head: int) -> DataLossError:
    """Return the error for a backend that stands elsewhere than the log says."""
    return DataLossError(
        f"step {ledger.closed_steps + 1} of run {ledger.run_id!r} starts from version {ledger.lineage.head} by the "
        f"log, but the backend stands at version {backend_head}; if its folder was replaced or another trainer used "
        "it, roll one of them back with `rollbus policy rollback`"
    )


async def _through_door(context: StepContext, batch: TrainingBatch, lags: Mapping[int, int]) -> DoorResult:
    members = {member.trajectory_id: member for _, member in members_of(batch)}
    found = await context.log.fetch([member.location for member in members.values()])
    payloads = {}
    for trajectory_id, member in members.items():
        payload = found.get(member.location)
        if payload is not None and payload.trajectory_id == trajectory_id:
            payloads[trajectory_id] = payload
    told = context.capabilities
    rules = DoorRules(
        context.settings.max_off_policy_steps,
        max_sequence_tokens=told.max_sequence_tokens if told else None,
        conversations=told is not None and told.wants_conversations,
    )
    excluded = await context.log.excluded_episodes()
    return check_batch(batch, payloads, lags=lags, excluded=excluded, rules=rules)


def _request(context: StepContext, batch: TrainingBatch, base: int, door: DoorResult) -> TrainRequest:
    return TrainRequest(
        batch_hash=batch.batch_hash,
        run_id=batch.run_id,
        model=batch.model,
        base_version=base,
        trajectories=door.admitted,
        config=context.settings.train,
    )


def _started(batch: TrainingBatch, decision: RunStep, started_ms: int) -> Publication:
    record = StepStarted(
        run_id=batch.run_id,
        model=batch.model,
        step=decision.step,
        attempt=decision.attempt,
        batch_hash=batch.batch_hash,
        batch_number=batch.number,
        base_version=decision.base_version,
        started_at_ms=started_ms,
    )
    return Publication(TRAINING_STEPS, batch.run_id, record)


@asynccontextmanager
async def _backend_failures(door: DoorResult) -> AsyncIterator[None]:
    """Tell what the backend raises from what the log raises: the one fails the step, the other reopens the log."""
    try:
        yield
    except (StoppedWaitingError, FencedError):
        raise
    except Exception as error:
        raise StepFailureError(error, door) from error


class StoppedWaitingError(Exception):
    """Someone asked the loop to stop while it waited."""
