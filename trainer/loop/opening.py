"""A batch and its place in the ledger → an opened step: its StepStarted in the log, its members through the door.

A step is opened by itself, or in the transaction that closes the one before (`step`), with what `find_next_step` read
meanwhile. Its batch may be sent to the backend earlier (`sending_ahead`): that opens nothing, and is wasted if the step
is opened with other members.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from rollbus.schemas.errors import RejectedError
from rollbus.schemas.records.drops import DropReason
from rollbus.schemas.records.groups import TrainingBatch
from rollbus.schemas.records.steps import StepStarted
from rollbus.schemas.topics import TRAINING_STEPS
from rollbus.trainer.backends.protocol import TERMINAL_STATES, TrainRequest, TrainResult
from rollbus.trainer.ledger.ledger import RunStep
from rollbus.trainer.ledger.log import Publication, ReceivedBatch
from rollbus.trainer.loop.accounting import distinct_members, step_identity
from rollbus.trainer.loop.context import StepContext, failing_the_step, heads_differ
from rollbus.trainer.loop.door import DoorResult, DoorRules, check_batch
from rollbus.trainer.loop.inspection import Inspected, add_hints

logger = logging.getLogger(__name__)

NO_MEMBERS = DoorResult((), ())


@dataclass(frozen=True, slots=True)
class ReadyStep:
    """A step on its way to the backend."""

    received: ReceivedBatch
    step: int
    base: int
    lags: Mapping[int, int]
    """By policy version, from the base."""
    door: DoorResult
    started_at_ms: int
    began_at_s: float
    """On the performance counter: when the trainer began to keep the backend waiting."""
    result: TrainResult | None = None
    """Result of an earlier attempt, if there was one."""
    serves: bool = False
    """Whether the update serves its version too; False if an earlier attempt may run, which was not asked to."""


@dataclass(slots=True)
class SentEarly:
    """What was sent ahead of a step: the decisions about its members, and the episodes excluded at that time."""

    batch_hash: str | None = None
    door: DoorResult = NO_MEMBERS
    excluded: Collection[str] = ()

    def still_holds(self, batch: TrainingBatch, excluded: Collection[str]) -> bool:
        """Whether the same members would be admitted now, with one more version on the lineage."""
        off_lineage = any(member.reason == DropReason.OFF_LINEAGE for member in self.door.dropped)
        return batch.batch_hash == self.batch_hash and not off_lineage and excluded == self.excluded


@dataclass(frozen=True, slots=True)
class NextStepCandidate:
    """A next step that may be opened with the end of this one; its members have been through the door."""

    received: ReceivedBatch
    lags: Mapping[int, int]
    door: DoorResult


async def open_step(
    context: StepContext, received: ReceivedBatch, decision: RunStep, *, head: int | None = None
) -> ReadyStep:
    """Open a step by itself; `head` is the backend's, if it was asked just now.

    1. An earlier attempt: ask the journal; what it holds has happened and is not submitted again.
    2. StepStarted, alone in a transaction: from here on the journal may hold the batch.
    3. Payload by location and the door, during 2, since neither touches the backend.
    4. If the door admits no member, nothing will be submitted: wait for an earlier attempt that still runs.
    """
    began_at_s, started_ms = time.perf_counter(), context.clock_ms()
    result = await _find_recorded_result(context, received.batch, decision, head)
    base = result.base_version if result is not None else decision.base_version
    lags = context.ledger.lineage.lags(base)
    if result is None:
        starting = asyncio.create_task(context.publish((make_started(received.batch, decision, started_ms),)))
        try:
            door = await _check_members(context, received.batch, lags)
        finally:
            await starting
        if decision.ask_journal and not door.admitted:
            result = await _join_earlier_attempt(context, received.batch.batch_hash)
    else:
        door = await _check_members(context, received.batch, lags)
    serves = context.serves_on_request and not decision.ask_journal
    return ReadyStep(received, decision.step, base, lags, door, started_ms, began_at_s, result, serves)


@asynccontextmanager
async def sending_ahead(context: StepContext, ready_step: ReadyStep) -> AsyncIterator[SentEarly]:
    """While the backend trains a step, read the next batch and send it there; give up when the step ends."""
    sent_early = SentEarly()
    if context.capabilities is None or not context.capabilities.prepares:
        yield sent_early
        return
    sending = asyncio.create_task(_send_ahead(context, ready_step, sent_early))
    try:
        yield sent_early
    finally:
        sending.cancel()
        await asyncio.wait([sending])
    if not sending.cancelled():
        sending.result()


def request_for(
    context: StepContext, batch: TrainingBatch, base: int, door: DoorResult, *, serve: bool
) -> TrainRequest:
    """Return the request for the backend."""
    return TrainRequest(
        batch_hash=batch.batch_hash,
        run_id=batch.run_id,
        model=batch.model,
        base_version=base,
        trajectories=door.admitted,
        config=context.settings.train,
        most_difference=context.settings.most_difference or None,
        serve=serve,
    )


async def find_next_step(
    context: StepContext, lags: Mapping[int, int], sent_early: SentEarly
) -> NextStepCandidate | None:
    """Return the next batch if its step can be opened with the end of this one; `lags` are those from its base.

    It can if batch and payload have been read, no pause holds, and nothing has to be done in between.
    """
    received = context.ahead.ready
    if received is None or not _may_follow(context, received.batch):
        return None
    paused, excluded = await asyncio.gather(context.log.paused(), context.log.excluded_episodes())
    if paused is not None or not context.free(context.ledger):
        return None
    payloads = await _load_payloads(context, received.batch)
    if sent_early.still_holds(received.batch, excluded):
        return NextStepCandidate(received, lags, sent_early.door)
    return NextStepCandidate(received, lags, _check_payloads(context, received.batch, payloads, lags, excluded))


async def take_opened_step(
    context: StepContext, candidate: NextStepCandidate, decision: RunStep, *, started_ms: int, began_at_s: float
) -> ReadyStep:
    """Return the step whose StepStarted was just written with the end of the one before."""
    await context.ahead.next_batch(0.0)  # hands out the one that was ready
    base = decision.base_version
    serves = context.serves_on_request
    return ReadyStep(
        candidate.received, decision.step, base, candidate.lags, candidate.door, started_ms, began_at_s, serves=serves
    )


def make_started(batch: TrainingBatch, decision: RunStep, started_ms: int) -> Publication:
    """Return the record that opens a step."""
    record = StepStarted(
        **step_identity(batch, decision.step),
        attempt=decision.attempt,
        base_version=decision.base_version,
        started_at_ms=started_ms,
    )
    return Publication(TRAINING_STEPS, batch.run_id, record)


async def _send_ahead(context: StepContext, ready_step: ReadyStep, sent_early: SentEarly) -> None:
    """Check the next batch by its lags from the version that is being made, and send it."""
    try:
        received = await context.ahead.until_ready()
        if received is None or not _may_follow(context, received.batch):
            return
        lags = {version: lag + 1 for version, lag in ready_step.lags.items()}
        excluded = context.ahead.excluded_before
        payloads = await _load_payloads(context, received.batch, keep=True)
        door = _check_payloads(context, received.batch, payloads, lags, excluded)
        sent_early.batch_hash, sent_early.door, sent_early.excluded = received.batch.batch_hash, door, excluded
        if door.admitted:
            serve = context.serves_on_request
            await context.backend.prepare(request_for(context, received.batch, ready_step.base, door, serve=serve))
    except Exception as error:  # the step itself meets the same failure, and writes it down
        logger.info("the batch after step %d is not sent ahead: %s", ready_step.step, error)


def _may_follow(context: StepContext, batch: TrainingBatch) -> bool:
    """Whether the batch is a step of its own: not one that is done, or open, or for another model."""
    ledger = context.ledger
    is_open = ledger.open_step is not None and ledger.open_step.batch_hash == batch.batch_hash
    return batch.model == context.settings.model and batch.batch_hash not in ledger.done and not is_open


async def _find_recorded_result(
    context: StepContext, batch: TrainingBatch, decision: RunStep, head: int | None
) -> TrainResult | None:
    """Return the result of an earlier attempt; without one, check that the backend's head is our base."""
    async with failing_the_step(NO_MEMBERS):
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


async def _join_earlier_attempt(context: StepContext, batch_hash: str) -> TrainResult | None:
    """Return the result of an earlier attempt that still runs, although the door now refuses all its members.

    If the door admits a member, submitting the batch joins that attempt.
    """
    async with failing_the_step(NO_MEMBERS):
        try:
            status = await context.backend.status(batch_hash)
        except RejectedError:  # it never came there
            return None
        if status.state in TERMINAL_STATES:
            return await context.backend.journal(batch_hash)
        return await context.wait(context.backend.wait(batch_hash, context.settings.poll_interval_s))


async def _check_members(context: StepContext, batch: TrainingBatch, lags: Mapping[int, int]) -> DoorResult:
    payloads = await _load_payloads(context, batch)
    return _check_payloads(context, batch, payloads, lags, await context.log.excluded_episodes())


async def _load_payloads(context: StepContext, batch: TrainingBatch, *, keep: bool = False) -> Mapping[str, Inspected]:
    """Return the payloads that exist by trajectory id; with `keep` they stay for the next call."""
    members = {member.trajectory_id: member for _, member in distinct_members(batch)}
    inspections = await context.ahead.payload([member.location for member in members.values()], keep=keep)
    payloads = {}
    for trajectory_id, member in members.items():
        inspected = inspections.get(member.location)
        if inspected is not None and inspected.payload.trajectory_id == trajectory_id:
            payloads[trajectory_id] = inspected
    if context.settings.train.distill is None:
        return payloads
    revised_at = {trajectory_id: member.revised_at for trajectory_id, member in members.items() if member.revised_at}
    hints_at = {trajectory_id: member.hints_at for trajectory_id, member in members.items() if member.hints_at}
    revisions = await context.log.fetch_revisions(set(revised_at.values())) if revised_at else {}
    scores = await context.log.fetch_scores(set(hints_at.values())) if hints_at else {}
    return {
        name: add_hints(
            inspected,
            members[name],
            revisions.get(revised_at[name]) if name in revised_at else None,
            scores.get(hints_at[name]) if name in hints_at else None,
        )
        for name, inspected in payloads.items()
    }


def _check_payloads(
    context: StepContext,
    batch: TrainingBatch,
    payloads: Mapping[str, Inspected],
    lags: Mapping[int, int],
    excluded: Collection[str],
) -> DoorResult:
    capabilities = context.capabilities
    settings, longest = context.settings, capabilities.max_sequence_tokens if capabilities else None
    rules = DoorRules(
        settings.max_off_policy_steps,
        longest,
        settings.max_share_per_source,
        trains_text=capabilities is not None and capabilities.trains_text,
    )
    return check_batch(batch, payloads, lags=lags, excluded=excluded, rules=rules)
