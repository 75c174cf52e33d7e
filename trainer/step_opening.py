"""A batch and its place in the ledger → an opened step: its StepStarted in the log, its members through the door.

A step is opened by itself, or in the transaction that closes the one before (`step`): then with what `look_ahead` saw
while the backend loaded the version that the step starts from and the records of the end were on their way. What it
will submit is sent to the backend before (`sending_ahead`): that opens nothing, and where the step is opened with other
members it was sent for nothing.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from rollbus.schemas.drops import DropReason
from rollbus.schemas.errors import RejectedError
from rollbus.schemas.groups import TrainingBatch
from rollbus.schemas.steps import StepStarted
from rollbus.schemas.topics import TRAINING_STEPS
from rollbus.trainer.accounting import members_of
from rollbus.trainer.backends.protocol import TERMINAL_STATES, TrainRequest, TrainResult
from rollbus.trainer.door import DoorResult, DoorRules, check_batch
from rollbus.trainer.inspection import Inspected
from rollbus.trainer.ledger import RunStep
from rollbus.trainer.log import NextBatch, Publication
from rollbus.trainer.step_context import StepContext, backend_failures, heads_differ

logger = logging.getLogger(__name__)

NOBODY = DoorResult((), ())


@dataclass(frozen=True, slots=True)
class OpenedStep:
    """A step on its way to the backend."""

    following: NextBatch
    step: int
    base: int
    lags: Mapping[int, int]
    """By policy version, from the base."""
    door: DoorResult
    started_at_ms: int
    began_s: float
    """On the performance counter: since when the trainer keeps the backend waiting."""
    result: TrainResult | None = None
    """What an earlier attempt did, if there was one."""
    serves: bool = False
    """Whether the update serves its version too. Not where an earlier attempt may run, which was asked otherwise."""


@dataclass(slots=True)
class Sent:
    """What went ahead of a step, if anything did: what its members met at the door, and who was excluded then."""

    batch_hash: str | None = None
    door: DoorResult = NOBODY
    excluded: Collection[str] = ()

    def stands(self, batch: TrainingBatch, excluded: Collection[str]) -> bool:
        """Whether the door would say the same now, with one more version on the lineage."""
        strangers = any(each.reason == DropReason.OFF_LINEAGE for each in self.door.dropped)
        return batch.batch_hash == self.batch_hash and not strangers and excluded == self.excluded


@dataclass(frozen=True, slots=True)
class Ahead:
    """A next step that may be opened with the end of this one; its members have been through the door."""

    following: NextBatch
    lags: Mapping[int, int]
    door: DoorResult


async def open_step(
    context: StepContext, following: NextBatch, decision: RunStep, *, head: int | None = None
) -> OpenedStep:
    """Open a step by itself; `head` is where the backend stands, if it was asked just now.

    1. An earlier attempt: ask the journal; what it holds has happened and is not submitted again.
    2. StepStarted, alone in a transaction: from here on the journal may hold the batch.
    3. Payload by location and the door, beside 2 since neither touches the backend.
    4. An earlier attempt that is under way, where the door admits nobody and nothing will be submitted: wait for it.
    """
    began_s, started_ms = time.perf_counter(), context.clock_ms()
    result = await _recorded_result(context, following.batch, decision, head)
    base = result.base_version if result is not None else decision.base_version
    lags = context.ledger.lineage.lags(base)
    if result is None:
        starting = asyncio.create_task(context.publish((started(following.batch, decision, started_ms),)))
        try:
            door = await _through_door(context, following.batch, lags)
        finally:
            await starting
        if decision.ask_journal and not door.admitted:
            result = await _joined_result(context, following.batch.batch_hash)
    else:
        door = await _through_door(context, following.batch, lags)
    serves = context.serves_on_request and not decision.ask_journal
    return OpenedStep(following, decision.step, base, lags, door, started_ms, began_s, result, serves)


@asynccontextmanager
async def sending_ahead(context: StepContext, opened: OpenedStep) -> AsyncIterator[Sent]:
    """While the backend trains a step, read the next batch and prepare it there; given up where that takes longer."""
    sent = Sent()
    if context.capabilities is None or not context.capabilities.prepares:
        yield sent
        return
    sending = asyncio.create_task(_send_ahead(context, opened, sent))
    try:
        yield sent
    finally:
        sending.cancel()
        await asyncio.wait([sending])
    if not sending.cancelled():
        sending.result()


def request_for(
    context: StepContext, batch: TrainingBatch, base: int, door: DoorResult, *, serve: bool
) -> TrainRequest:
    """Return what the backend is to train."""
    return TrainRequest(
        batch_hash=batch.batch_hash,
        run_id=batch.run_id,
        model=batch.model,
        base_version=base,
        trajectories=door.admitted,
        config=context.settings.train,
        serve=serve,
    )


async def look_ahead(context: StepContext, lags: Mapping[int, int], sent: Sent) -> Ahead | None:
    """Return the next batch if its step can be opened with the end of this one; `lags` are those from its base.

    It can where batch and payload have been read, no pause holds, and nothing is to be done in between.
    """
    following = context.log.ready
    if following is None or not _may_follow(context, following.batch):
        return None
    paused, excluded = await asyncio.gather(context.log.paused(), context.log.excluded_episodes())
    if paused is not None or not context.free(context.ledger):
        return None
    payloads = await _payloads(context, following.batch)
    if sent.stands(following.batch, excluded):
        return Ahead(following, lags, sent.door)
    return Ahead(following, lags, _check(context, following.batch, payloads, lags, excluded))


async def opened_ahead(
    context: StepContext, ahead: Ahead, decision: RunStep, *, started_ms: int, began_s: float
) -> OpenedStep:
    """Return the step whose StepStarted was just written with the end of the one before."""
    await context.log.next_batch(0.0)  # hands out the one that was ready
    base = decision.base_version
    serves = context.serves_on_request
    return OpenedStep(ahead.following, decision.step, base, ahead.lags, ahead.door, started_ms, began_s, serves=serves)


def started(batch: TrainingBatch, decision: RunStep, started_ms: int) -> Publication:
    """Return the record that opens a step."""
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


async def _send_ahead(context: StepContext, opened: OpenedStep, sent: Sent) -> None:
    """By the lags from the version that is being made: its own number nobody has sampled from yet."""
    try:
        following = await context.log.until_ready()
        if following is None or not _may_follow(context, following.batch):
            return
        lags = {version: lag + 1 for version, lag in opened.lags.items()}
        excluded = context.log.excluded_before
        payloads = await _payloads(context, following.batch, keep=True)
        door = _check(context, following.batch, payloads, lags, excluded)
        sent.batch_hash, sent.door, sent.excluded = following.batch.batch_hash, door, excluded
        if door.admitted:
            serve = context.serves_on_request
            await context.backend.prepare(request_for(context, following.batch, opened.base, door, serve=serve))
    except Exception as error:  # the step itself meets the same failure, and writes it down
        logger.info("the batch after step %d is not sent ahead: %s", opened.step, error)


def _may_follow(context: StepContext, batch: TrainingBatch) -> bool:
    """Whether the batch is a step of its own: not one that is done, or open, or for another model."""
    ledger = context.ledger
    is_open = ledger.open_step is not None and ledger.open_step.batch_hash == batch.batch_hash
    return batch.model == context.settings.model and batch.batch_hash not in ledger.done and not is_open


async def _recorded_result(
    context: StepContext, batch: TrainingBatch, decision: RunStep, head: int | None
) -> TrainResult | None:
    """What an earlier attempt did, if there was one; without it, make sure that the backend stands at our base."""
    async with backend_failures(NOBODY):
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


async def _joined_result(context: StepContext, batch_hash: str) -> TrainResult | None:
    """What an earlier attempt comes to that is under way still, although by now the door refuses all it was given.

    Where the door admits somebody, submitting joins it.
    """
    async with backend_failures(NOBODY):
        try:
            status = await context.backend.status(batch_hash)
        except RejectedError:  # it never came there
            return None
        if status.state in TERMINAL_STATES:
            return await context.backend.journal(batch_hash)
        return await context.wait(context.backend.wait(batch_hash, context.settings.poll_interval_s))


async def _through_door(context: StepContext, batch: TrainingBatch, lags: Mapping[int, int]) -> DoorResult:
    payloads = await _payloads(context, batch)
    return _check(context, batch, payloads, lags, await context.log.excluded_episodes())


async def _payloads(context: StepContext, batch: TrainingBatch, *, keep: bool = False) -> Mapping[str, Inspected]:
    """By trajectory id, of the members whose payload is there; with `keep` it stays for the next time."""
    members = {member.trajectory_id: member for _, member in members_of(batch)}
    found = await context.log.payload([member.location for member in members.values()], keep=keep)
    payloads = {}
    for trajectory_id, member in members.items():
        inspected = found.get(member.location)
        if inspected is not None and inspected.payload.trajectory_id == trajectory_id:
            payloads[trajectory_id] = inspected
    return payloads


def _check(
    context: StepContext,
    batch: TrainingBatch,
    payloads: Mapping[str, Inspected],
    lags: Mapping[int, int],
    excluded: Collection[str],
) -> DoorResult:
    told = context.capabilities
    rules = DoorRules(
        context.settings.max_off_policy_steps,
        max_sequence_tokens=told.max_sequence_tokens if told else None,
        conversations=told is not None and told.wants_conversations,
    )
    return check_batch(batch, payloads, lags=lags, excluded=excluded, rules=rules)
