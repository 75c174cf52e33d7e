"""An opened step → a closed one: backend, outcome, and where all is ready the opening of the next.

The order that makes delivery safe: StepStarted → submit by batch hash → the new version answers → one transaction with
the step's record, its version, the outcome, the drops and the offset of the batch. A crash between any two of them is
repaired by running the batch again: the backend knows it by its hash, the ledger knows the step by its records.

That transaction may hold the next step's StepStarted too. To whoever reads the log this is a step that was closed and
one that was opened at once, in this order; both or neither are there.
"""

import asyncio
import logging
import time
from collections import Counter

from rollbus.schemas.drops import Drop, DropReason
from rollbus.schemas.errors import DataLossError
from rollbus.schemas.groups import TrainingBatch
from rollbus.schemas.steps import StepCompleted, StepFailed
from rollbus.schemas.topics import RUN_LOG, TRAINING_STEPS
from rollbus.trainer.accounting import StepFacts, completed_step, skipped_step
from rollbus.trainer.backends.protocol import TrainResult
from rollbus.trainer.ledger import RunStep
from rollbus.trainer.log import NextBatch, Publication
from rollbus.trainer.step_context import StepContext, StepFailureError, backend_failures
from rollbus.trainer.step_opening import (
    Ahead,
    OpenedStep,
    Sent,
    look_ahead,
    opened_ahead,
    request_for,
    sending_ahead,
    started,
)

logger = logging.getLogger(__name__)


async def train_step(context: StepContext, opened: OpenedStep) -> OpenedStep | None:
    """Train and close; returns the next step where it was opened in the same transaction."""
    batch, result, sent = opened.following.batch, opened.result, Sent()
    submitted_s = time.perf_counter()
    async with backend_failures(opened.door):
        if result is None and opened.door.admitted:
            await context.backend.submit(request_for(context, batch, opened.base, opened.door, serve=opened.serves))
            submitted_s = time.perf_counter()
            waiting = context.backend.wait(batch.batch_hash, context.settings.poll_interval_s)
            async with sending_ahead(context, opened) as sent:
                result = await context.wait(waiting)
    if result is not None and result.base_version != opened.base:
        raise DataLossError(
            f"the backend trained batch {batch.batch_hash} before, from version {result.base_version} to "
            f"{result.version}, and the log of run {batch.run_id!r} does not know of it (it starts from {opened.base});"
            " give the run another id, or the backend an empty folder"
        )
    if result is None or result.state == "skipped":
        await _close_skipped(context, opened, result)
        return None
    following = await _close_completed(context, opened, result, sent, submitted_s - opened.began_s)
    logger.info(
        "step %d run=%s base=%d version=%d batch=%s",
        *(opened.step, batch.run_id, opened.base, result.version, batch.batch_hash),
    )
    return following


async def record_failure(context: StepContext, batch: TrainingBatch, failure: StepFailureError, *, final: bool) -> None:
    """Write down that an attempt failed."""
    opened = context.ledger.open_step
    record = StepFailed(
        run_id=batch.run_id,
        model=batch.model,
        step=opened.step if opened else context.ledger.closed_steps + 1,
        attempt=context.ledger.attempt,
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


async def _close_skipped(context: StepContext, opened: OpenedStep, result: TrainResult | None) -> None:
    reason = "the door admitted nothing" if result is None else "the backend found nothing to train"
    publications = skipped_step(
        _facts(context, opened), opened.door, result, reason=reason, fallback=DropReason.REJECTED_BY_BACKEND
    )
    await context.publish(publications, next_offset=opened.following.next_offset)
    batch = opened.following.batch
    why = Counter(each.record.reason for each in publications if isinstance(each.record, Drop))
    logger.warning(
        "step %d run=%s batch=%s trained nothing: %s (%s)",
        *(opened.step, batch.run_id, batch.batch_hash, reason, ", ".join(f"{n} {each}" for each, n in why.items())),
    )


async def _close_completed(
    context: StepContext, opened: OpenedStep, result: TrainResult, sent: Sent, seconds_outside: float
) -> OpenedStep | None:
    """Serve the new version, so that it is announced only once it answers, then write everything at once."""
    ended_s = time.perf_counter()
    ahead, publications = await asyncio.gather(
        _served(context, opened, result, sent), _outcome(context, opened, result, seconds_outside)
    )
    pause = next(
        context.alarm(each.record.step, each.record.metrics)
        for each in publications
        if isinstance(each.record, StepCompleted)
    )
    decision, started_ms = RunStep(opened.step + 1, 1, result.version, ask_journal=False), context.clock_ms()
    if pause is not None:
        publications += (Publication(RUN_LOG, context.settings.run_id, pause),)
    elif ahead is not None:
        publications += (started(ahead.following.batch, decision, started_ms),)
    await context.publish(publications, next_offset=opened.following.next_offset)
    if pause is not None or ahead is None:
        return None
    return await opened_ahead(context, ahead, decision, started_ms=started_ms, began_s=ended_s)


async def _outcome(
    context: StepContext, opened: OpenedStep, result: TrainResult, seconds_outside: float
) -> tuple[Publication, ...]:
    """Make the records of the step, while the backend loads its version."""
    return completed_step(
        _facts(context, opened),
        opened.door,
        result,
        lags=opened.lags,
        state="serving" if context.settings.serve_at_once else "candidate",
        seconds_outside_backend=seconds_outside,
    )


async def _served(context: StepContext, opened: OpenedStep, result: TrainResult, sent: Sent) -> Ahead | None:
    """Let the backend serve the version, unless the update did, and see whether the next step can be opened with this.

    Not after a crash: what was trained before it may not be what stands in the log since.
    """
    fresh = opened.result is None and result.version not in context.ledger.lineage.parents
    lags = {result.version: 0, **{version: lag + 1 for version, lag in opened.lags.items()}}
    looking = asyncio.create_task(look_ahead(context, lags, sent)) if fresh else None
    ahead = None
    try:
        async with backend_failures(opened.door):
            if context.settings.serve_at_once and not opened.serves:
                await context.backend.promote(result.version)
    finally:
        if looking is not None:
            ahead = await looking
    return ahead


def _facts(context: StepContext, opened: OpenedStep) -> StepFacts:
    return StepFacts(opened.following.batch, opened.step, opened.base, opened.started_at_ms, context.clock_ms())
