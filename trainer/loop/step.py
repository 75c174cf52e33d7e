"""An opened step → a closed one: backend, outcome, and if all is ready the opening of the next.

The order that makes delivery safe: StepStarted → submit by batch hash → the new version answers → one transaction with
the step's record, its version, the outcome, the drops and the offset of the batch. A crash between any two of them is
repaired by running the batch again: the backend knows it by its hash, the ledger knows the step by its records.

That transaction may hold the next step's StepStarted too. A reader of the log sees a step closed and the next one
opened, in this order; both or neither are there.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from rollbus.runtime.tasks import start_task
from rollbus.schemas.errors import DataLossError
from rollbus.schemas.records.drops import Drop, DropReason
from rollbus.schemas.records.groups import TrainingBatch
from rollbus.schemas.records.steps import StepCompleted, StepFailed, StepStarted
from rollbus.schemas.topics import RUN_LOG, TRAINING_STEPS
from rollbus.trainer.backends.protocol import TrainResult
from rollbus.trainer.ledger.ledger import RunStep
from rollbus.trainer.ledger.log import Publication, ReceivedBatch
from rollbus.trainer.loop.accounting import StepFacts, record_completed_step, record_skipped_step, step_identity
from rollbus.trainer.loop.context import StepContext, StepFailureError, failing_the_step
from rollbus.trainer.loop.opening import (
    NextStepCandidate,
    ReadyStep,
    SentEarly,
    find_next_step,
    make_started,
    request_for,
    sending_ahead,
    take_opened_step,
)

logger = logging.getLogger(__name__)

LONGEST_LOOK_S = 2.0
"""How long an open transaction waits for the next batch to be read. If it takes longer, the next step is opened in a
transaction of its own."""
LINE_S, LATER_LINE_S, MINUTE_S = 4.5, 30.0, 60.0
"""Between two lines about an update that goes on: in its first minute somebody may be watching."""


async def train_step(context: StepContext, ready_step: ReadyStep) -> ReadyStep | None:
    """Train and close; return the next step if it was opened in the same transaction."""
    batch, result, sent_early = ready_step.received.batch, ready_step.result, SentEarly()
    submitted_at_s = time.perf_counter()
    async with failing_the_step(ready_step.door):
        if result is None and ready_step.door.admitted:
            await context.backend.submit(
                request_for(context, batch, ready_step.base, ready_step.door, serve=ready_step.serves)
            )
            submitted_at_s = time.perf_counter()
            waiting = context.backend.wait(batch.batch_hash, context.settings.poll_interval_s)
            async with sending_ahead(context, ready_step) as sent_early, _logging_progress(ready_step):
                result = await context.wait(waiting)
    if result is not None and result.base_version != ready_step.base:
        raise DataLossError(
            f"the backend trained batch {batch.batch_hash} before, from version {result.base_version} to "
            f"{result.version}, and the log of run {batch.run_id!r} does not know of it "
            f"(it starts from {ready_step.base}); give the run another id, or the backend an empty folder"
        )
    if result is None or result.state == "skipped":
        await _close_skipped(context, ready_step, result)
        return None
    next_step = await _close_completed(context, ready_step, result, sent_early, submitted_at_s - ready_step.began_at_s)
    logger.info(
        "step %d run=%s base=%d version=%d batch=%s",
        *(ready_step.step, batch.run_id, ready_step.base, result.version, batch.batch_hash),
    )
    return next_step


@asynccontextmanager
async def _logging_progress(ready_step: ReadyStep) -> AsyncIterator[None]:
    """Log that an update has begun, and now and then that it goes on."""
    began_s, step = time.monotonic(), f"step {ready_step.step} run={ready_step.received.batch.run_id}"
    logger.info("%s base=%d trains %d trajectories", step, ready_step.base, len(ready_step.door.admitted))

    async def log_lines() -> None:
        elapsed_s = 0.0
        while True:
            await asyncio.sleep(LINE_S if elapsed_s < MINUTE_S else LATER_LINE_S)
            elapsed_s = time.monotonic() - began_s
            logger.info("%s has been training for %.0f s", step, elapsed_s)

    lines = start_task(log_lines(), "lines about an update")
    try:
        yield
    finally:
        lines.cancel()


async def record_failure(context: StepContext, batch: TrainingBatch, failure: StepFailureError, *, final: bool) -> None:
    """Record that an attempt failed."""
    open_step = context.ledger.open_step
    record = StepFailed(
        **step_identity(batch, open_step.step if open_step else context.ledger.closed_steps + 1),
        attempt=context.ledger.attempt,
        base_version=open_step.base_version if open_step else context.ledger.lineage.head or 0,
        error_class=type(failure.error).__name__,
        message=str(failure.error),
        final=final,
        failed_at_ms=context.clock_ms(),
    )
    await context.publish((Publication(TRAINING_STEPS, batch.run_id, record),))


async def skip_rejected(context: StepContext, received: ReceivedBatch, failure: StepFailureError) -> None:
    """Close the open step of a batch that the backend refuses, with every member dropped."""
    open_step = context.ledger.open_step
    if open_step is None:
        raise DataLossError(f"batch {received.batch.batch_hash} was refused, but no step is open for it")
    now_ms = context.clock_ms()
    facts = StepFacts(received.batch, open_step.step, open_step.base_version, now_ms, now_ms)
    publications = record_skipped_step(
        facts,
        failure.door,
        None,
        reason=f"the backend refused it: {failure.error}",
        fallback=DropReason.REJECTED_BY_BACKEND,
    )
    await context.publish(publications, next_offset=received.next_offset)


async def _close_skipped(context: StepContext, ready_step: ReadyStep, result: TrainResult | None) -> None:
    reason = "the door admitted nothing" if result is None else "the backend found nothing to train"
    publications = record_skipped_step(
        _step_facts(context, ready_step),
        ready_step.door,
        result,
        reason=reason,
        fallback=DropReason.REJECTED_BY_BACKEND,
    )
    await context.publish(publications, next_offset=ready_step.received.next_offset)
    batch = ready_step.received.batch
    why = Counter(publication.record.reason for publication in publications if isinstance(publication.record, Drop))
    logger.warning(
        "step %d run=%s batch=%s trained nothing: %s (%s)",
        *(
            ready_step.step,
            batch.run_id,
            batch.batch_hash,
            reason,
            ", ".join(f"{n} {cause}" for cause, n in why.items()),
        ),
    )


async def _close_completed(
    context: StepContext,
    ready_step: ReadyStep,
    result: TrainResult,
    sent_early: SentEarly,
    seconds_outside_backend: float,
) -> ReadyStep | None:
    """Serve the new version, so that it is announced only once it answers, then write everything at once.

    Meanwhile find out whether the next step can be opened in the same transaction.
    """
    ended_at_s = time.perf_counter()
    finding = asyncio.create_task(_find_next_step(context, ready_step, result, sent_early))
    try:
        publications = _make_outcome(context, ready_step, result, seconds_outside_backend)
        await _serve_version(context, ready_step, result)
        next_offset = ready_step.received.next_offset
        if (pause := _make_pause(context, publications)) is not None:
            await context.publish((*publications, pause), next_offset=next_offset)
            return None
        decision = RunStep(ready_step.step + 1, 1, result.version, ask_journal=False)
        last = partial(_next_start_record, context, finding, decision)
        *_, newest = await context.publish(publications, last=last, next_offset=next_offset)
        candidate = finding.result() if isinstance(newest.record, StepStarted) else None
    finally:
        finding.cancel()
        await asyncio.gather(finding, return_exceptions=True)
    if candidate is None:
        return None
    return await take_opened_step(
        context, candidate, decision, started_ms=newest.record.started_at_ms, began_at_s=ended_at_s
    )


def _make_outcome(
    context: StepContext, ready_step: ReadyStep, result: TrainResult, seconds_outside_backend: float
) -> tuple[Publication, ...]:
    return record_completed_step(
        _step_facts(context, ready_step),
        ready_step.door,
        result,
        lags=ready_step.lags,
        state="serving" if context.settings.serve_at_once else "candidate",
        seconds_outside_backend=seconds_outside_backend,
    )


async def _serve_version(context: StepContext, ready_step: ReadyStep, result: TrainResult) -> None:
    """Let the backend serve the version, unless the update did so or an operator will."""
    if context.settings.serve_at_once and not ready_step.serves:
        async with failing_the_step(ready_step.door):
            await context.backend.promote(result.version)


def _make_pause(context: StepContext, publications: tuple[Publication, ...]) -> Publication | None:
    """Return the pause that the step leads to, if any."""
    (completed,) = (publication.record for publication in publications if isinstance(publication.record, StepCompleted))
    pause = context.alarm(completed.step, completed.metrics)
    return None if pause is None else Publication(RUN_LOG, context.settings.run_id, pause)


async def _find_next_step(
    context: StepContext, ready_step: ReadyStep, result: TrainResult, sent_early: SentEarly
) -> NextStepCandidate | None:
    """Find the next step if it can be opened with the end of this one.

    Not if this step's result came from the journal or its version is already in the ledger: then open the next one
    separately.
    """
    if ready_step.result is not None or result.version in context.ledger.lineage.parents:
        return None
    # seen from the new version, each older one is a step further behind
    lags = {result.version: 0, **{version: lag + 1 for version, lag in ready_step.lags.items()}}
    return await find_next_step(context, lags, sent_early)


async def _next_start_record(
    context: StepContext, finding: asyncio.Task[NextStepCandidate | None], decision: RunStep
) -> tuple[Publication, ...]:
    """Return the record that opens the next step, if it was found in time."""
    await asyncio.wait([finding], timeout=LONGEST_LOOK_S)
    candidate = finding.result() if finding.done() else None
    return () if candidate is None else (make_started(candidate.received.batch, decision, context.clock_ms()),)


def _step_facts(context: StepContext, ready_step: ReadyStep) -> StepFacts:
    return StepFacts(
        ready_step.received.batch, ready_step.step, ready_step.base, ready_step.started_at_ms, context.clock_ms()
    )
