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
from functools import partial

from rollbus.schemas.drops import Drop, DropReason
from rollbus.schemas.errors import DataLossError
from rollbus.schemas.groups import TrainingBatch
from rollbus.schemas.steps import StepCompleted, StepFailed, StepStarted
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

LONGEST_LOOK_S = 2.0
"""At the next batch, while a transaction is open; then that batch is opened by itself."""


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
    """Serve the new version, so that it is announced only once it answers, then write everything at once.

    Whether the next step can be opened with this is looked at meanwhile, and need not be known to begin.
    """
    ended_s = time.perf_counter()
    looking = asyncio.create_task(_look(context, opened, result, sent))
    try:
        publications = _outcome(context, opened, result, seconds_outside)
        await _serve(context, opened, result)
        next_offset = opened.following.next_offset
        if (pause := _alarm(context, publications)) is not None:
            await context.publish((*publications, pause), next_offset=next_offset)
            return None
        decision = RunStep(opened.step + 1, 1, result.version, ask_journal=False)
        last = partial(_opening, context, looking, decision)
        *_, newest = await context.publish(publications, last=last, next_offset=next_offset)
        ahead = looking.result() if isinstance(newest.record, StepStarted) else None
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
    if ahead is None:
        return None
    return await opened_ahead(context, ahead, decision, started_ms=newest.record.started_at_ms, began_s=ended_s)


def _outcome(
    context: StepContext, opened: OpenedStep, result: TrainResult, seconds_outside: float
) -> tuple[Publication, ...]:
    return completed_step(
        _facts(context, opened),
        opened.door,
        result,
        lags=opened.lags,
        state="serving" if context.settings.serve_at_once else "candidate",
        seconds_outside_backend=seconds_outside,
    )


async def _serve(context: StepContext, opened: OpenedStep, result: TrainResult) -> None:
    """Let the backend serve the version, unless the update did, or an operator will."""
    if context.settings.serve_at_once and not opened.serves:
        async with backend_failures(opened.door):
            await context.backend.promote(result.version)


def _alarm(context: StepContext, publications: tuple[Publication, ...]) -> Publication | None:
    """The pause that the step leads to, if it does."""
    (completed,) = (each.record for each in publications if isinstance(each.record, StepCompleted))
    pause = context.alarm(completed.step, completed.metrics)
    return None if pause is None else Publication(RUN_LOG, context.settings.run_id, pause)


async def _look(context: StepContext, opened: OpenedStep, result: TrainResult, sent: Sent) -> Ahead | None:
    """See whether the next step can be opened with the end of this one.

    Not after a crash: what was trained before it may not be what stands in the log since.
    """
    if opened.result is not None or result.version in context.ledger.lineage.parents:
        return None
    lags = {result.version: 0, **{version: lag + 1 for version, lag in opened.lags.items()}}
    return await look_ahead(context, lags, sent)


async def _opening(
    context: StepContext, looking: asyncio.Task[Ahead | None], decision: RunStep
) -> tuple[Publication, ...]:
    """The record that opens the next step, where it was seen in time that it can be opened."""
    await asyncio.wait([looking], timeout=LONGEST_LOOK_S)
    ahead = looking.result() if looking.done() else None
    return () if ahead is None else (started(ahead.following.batch, decision, context.clock_ms()),)


def _facts(context: StepContext, opened: OpenedStep) -> StepFacts:
    return StepFacts(opened.following.batch, opened.step, opened.base, opened.started_at_ms, context.clock_ms())
