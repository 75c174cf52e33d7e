"""The batches of a run, in order, each become one training step; the loop that owns a run's training.

log (log_kafka)     in: ledger and batches of the run; out: steps, versions, outcomes, drops with the offset
taking_over         log and backend brought to agree, whoever trained before
reading_ahead       the next batch and its payload, inspected (inspection), while the backend works
ledger, lineage     which step is next, from which weights, and what was done before a crash
step_opening        a batch and its members' payload → an opened step
step                an opened step → the transaction that closes it, and may open the next
door, accounting    what is trained and what is dropped, and the records that say so
between_steps       evaluations (validating), the candidate that is served (promotion), pauses, the alarm
backend             scored token rows → new weights; its journal says what happened while nobody listened
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from rollbus.schemas.control import RunCommand
from rollbus.schemas.errors import ConfigurationError, FencedError, RejectedError, RunStoppedError, UnavailableError
from rollbus.schemas.groups import TrainingBatch
from rollbus.trainer.backends.protocol import TERMINAL_STATES, Backend, Capabilities, TrainResult
from rollbus.trainer.between_steps import BetweenSteps
from rollbus.trainer.ledger import AlreadyDone, Ledger
from rollbus.trainer.log import NextBatch, TrainerLog
from rollbus.trainer.reading_ahead import ReadingAhead
from rollbus.trainer.step import record_failure, skip_rejected, train_step
from rollbus.trainer.step_context import LoopSettings, StepContext, StepFailureError, StoppedWaitingError
from rollbus.trainer.step_opening import OpenedStep, open_step
from rollbus.trainer.taking_over import agree, announce, check_model, folded
from rollbus.trainer.validating import Validation
from rollbus.trainer.waiting import Stop

logger = logging.getLogger(__name__)

REOPEN_PAUSES_S = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Between attempts to reach a log or backend that is away; the last repeats, since a broker may be down for long."""

PAUSED_LOOK_S = 1.0
"""Between looks at the log while the run is paused."""


class Trainer:
    """The one trainer of a model, for one run; `run` until stopped."""

    def __init__(
        self,
        log: TrainerLog,
        backend: Backend,
        settings: LoopSettings,
        *,
        validation: Validation | None = None,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._log = ReadingAhead(log)
        self._backend = backend
        self._settings = settings
        self._clock_ms = clock_ms
        self._stop = Stop(sleep)
        self._between = BetweenSteps(settings, validation, self._stop)
        self._settling = False
        self._context = self._new_context(Ledger(settings.run_id, settings.model), None)

    @property
    def ledger(self) -> Ledger:
        """What the trainer knows of the run now."""
        return self._context.ledger

    def stop(self) -> None:
        """Ask the loop to end: between batches, or while it waits for a backend that goes on by itself."""
        self._stop.ask()

    async def run(self, *, until_idle: bool = False) -> None:
        """Train every batch as it comes; returns when stopped, or with `until_idle` after the last that the log has.

        Raises FencedError when another trainer took over, RunStoppedError when a step failed for good or, with
        `until_idle`, a pause keeps back what is left, DataLossError where log and backend contradict each other.
        """
        try:
            with suppress(StoppedWaitingError):
                await self._run(until_idle=until_idle)
        finally:
            await self._log.forget()
            await self._between.close()

    async def settle(self) -> None:
        """Take over and close the step that was left open, if there is one: then nothing of the run is in flight.

        One that cannot be trained from where it stands stays open, and so does one whose base a rollback has given up
        already: the next trainer trains it from the head that the log has by then.
        """
        self._settling = True
        await self._open()
        opened = None
        try:
            while (opened := self.ledger.open_step) is not None and opened.base_version == self.ledger.lineage.head:
                following = await self._log.next_batch(self._settings.batch_wait_s)
                if following is None:
                    raise UnavailableError(f"the batch of open step {opened.step} does not come; try again")
                await self._handle(following)
        except RunStoppedError as error:
            if opened is not None and await self._is_under_way(opened.batch_hash):
                raise
            logger.warning("left to the next trainer: %s", error)
        finally:
            await self._log.forget()
            self._settling = False

    async def _run(self, *, until_idle: bool) -> None:
        failures = 0
        while not self._stop.asked:
            try:
                await self._open()
                failures = 0
                await self._train_batches(until_idle=until_idle)
                return
            except UnavailableError as error:
                pause = REOPEN_PAUSES_S[min(failures, len(REOPEN_PAUSES_S) - 1)]
                failures += 1
                logger.warning("log or backend away, opening again in %.0f s: %s", pause, error)
                await self._log.close()
                await self._stop.pause(pause)

    async def _open(self) -> None:
        """Take over the run; while settling, log and backend may differ, since a rollback mends that."""
        await self._log.open()
        ledger = await folded(self._log, self._settings)
        capabilities = await self._backend.capabilities()
        check_model(capabilities, self._settings)
        self._context = context = self._new_context(ledger, capabilities)
        await self._between.prepare(context)
        versions = await self._backend.versions()
        await announce(context, versions)
        if self._settling:
            return
        await agree(context, versions)
        logger.info(
            "trainer open run=%s model=%s steps=%d head=%s open_step=%s",
            *(ledger.run_id, ledger.model, ledger.closed_steps, ledger.lineage.head, ledger.open_step),
        )

    def _new_context(self, ledger: Ledger, capabilities: Capabilities | None) -> StepContext:
        return StepContext(
            log=self._log,
            backend=self._backend,
            settings=self._settings,
            ledger=ledger,
            clock_ms=self._clock_ms,
            wait=self._wait,
            free=lambda ledger: not self._settling and self._between.is_free(ledger),
            alarm=self._between.alarm,
            capabilities=capabilities,
        )

    async def _train_batches(self, *, until_idle: bool) -> None:
        opened: OpenedStep | None = None
        while not self._stop.asked:
            if opened is not None:
                opened = await self._handle(opened.following, opened)
                continue
            await self._between.look(self._context)
            pause = await self._between.standing_pause(self._context)
            following = None if pause else await self._log.next_batch(self._settings.batch_wait_s)
            if following is not None:
                opened = await self._handle(following)
            elif until_idle and await self._is_done(pause):
                await self._between.look(self._context, to_the_end=True)
                return
            else:
                await self._check_in_charge()
                if pause:
                    await self._stop.pause(PAUSED_LOOK_S)

    async def _is_done(self, pause: RunCommand | None) -> bool:
        """Whether no batch is left; RunStoppedError where one is, or may be, and a pause keeps it back."""
        if pause is None:
            return await self._log.at_end()
        waiting = await self._log.next_batch(self._settings.batch_wait_s, settle_broken=False)
        if waiting is not None or not await self._log.at_end():
            raise _paused_before_the_end(pause)
        return True

    async def _handle(self, following: NextBatch, opened: OpenedStep | None = None) -> OpenedStep | None:
        """Bring one batch to its outcome; a failed attempt is written down and tried again after a growing pause.

        Returns the next step where it was opened with the end of this one.
        """
        batch, context = following.batch, self._context
        head = None
        if opened is None:
            self._check_batch_model(batch)
            head = await self._follow_operator()
        pauses = iter(() if self._settling else self._settings.retry_pauses_s)
        while True:
            try:
                if opened is None:
                    decision = context.ledger.decide(batch)
                    if isinstance(decision, AlreadyDone):
                        logger.info("batch %s is step %d already", batch.batch_hash, decision.step)
                        await context.publish((), next_offset=following.next_offset)
                        return None
                    opened = await open_step(context, following, decision, head=head)
                next_opened = await train_step(context, opened)
                break
            except StepFailureError as failure:
                head = opened = None
                pause = next(pauses, None) if failure.retriable else None
                await record_failure(context, batch, failure, final=pause is None)
                if pause is not None:
                    logger.warning("batch %d failed, next try in %.0f s: %s", batch.number, pause, failure)
                    await self._stop.pause(pause)
                elif await self._may_drop(batch, failure):
                    await skip_rejected(context, following, failure)
                    next_opened = None
                    break
                else:
                    step = context.ledger.closed_steps + 1
                    skips = self._settings.skip_rejected
                    raise RunStoppedError(_what_to_look_at(batch, step, failure, skips=skips)) from failure.error
        self._check_budget()
        return next_opened

    async def _may_drop(self, batch: TrainingBatch, failure: StepFailureError) -> bool:
        """Whether to drop the batch: not where it was trained and something after the update was refused."""
        if not self._settings.skip_rejected or failure.retriable or self.ledger.open_step is None:
            return False
        result = await self._backend.journal(batch.batch_hash)
        return result is None or result.state == "skipped"

    async def _is_under_way(self, batch_hash: str) -> bool:
        """Whether the backend may still make a version of a batch."""
        try:
            return (await self._backend.status(batch_hash)).state not in TERMINAL_STATES
        except RejectedError:  # it never came there
            return False

    async def _follow_operator(self) -> int | None:
        """Read the ledger again where the backend's head has moved without us: a rollback, say. Returns the head."""
        ledger = self._context.ledger
        if ledger.open_step is not None:
            return None
        try:
            head = (await self._backend.versions()).head
        except Exception:  # the step itself meets the same failure, and writes it down
            return None
        if head != ledger.lineage.head:
            self._context.ledger = await folded(self._log, self._settings)
        return head

    async def _check_in_charge(self) -> None:
        """FencedError where a rollback moved the head meanwhile; the broker itself tells only who writes."""
        head = self.ledger.lineage.head
        await self._follow_operator()
        if self.ledger.lineage.head != head:
            raise FencedError(
                f"model {self._settings.model!r} is trained on from version {self.ledger.lineage.head} and no longer "
                f"from {head}: a rollback or another trainer took over; start this trainer again to go on from there"
            )

    def _check_batch_model(self, batch: TrainingBatch) -> None:
        if batch.model != self._settings.model:
            raise ConfigurationError(
                f"batch {batch.number} of run {batch.run_id!r} is for model {batch.model!r}, and this trainer holds "
                f"{self._settings.model!r}; give the run and its trainer the same model"
            )

    def _check_budget(self) -> None:
        skipped = self.ledger.skipped_in_a_row
        if skipped >= self._settings.max_skipped_in_a_row:
            raise RunStoppedError(
                f"run {self._settings.run_id!r}: the last {skipped} batches trained nothing; look at the reasons in "
                "topic `drops` (stage trainer): `stale` asks for smaller windows or a larger max_off_policy_steps, "
                "`payload_lost` for a longer retention of `trajectories`, `untrainable` for token ids and log-probs"
            )

    async def _wait(self, waiting: Awaitable[TrainResult]) -> TrainResult:
        self._log.begin()
        return await (waiting if self._settings.finish_on_stop else self._stop.unless_asked(waiting))


def _paused_before_the_end(pause: RunCommand) -> RunStoppedError:
    """Return the error for a run that was to train up to its last batch and may not."""
    why = pause.comment or "an operator gave no reason"
    return RunStoppedError(
        f"run {pause.run_id!r} is paused before its last batch ({why}); to train what is left, "
        "`rollbus trainer resume` and the same command again"
    )


def _what_to_look_at(batch: TrainingBatch, step: int, failure: StepFailureError, *, skips: bool) -> str:
    remedy = "start the trainer again when the backend is back"
    if not failure.retriable:
        remedy = "correct the cause and start the trainer again"
        remedy += "" if skips else ", or let it drop such batches with `on_rejected: skip`"
    return (
        f"step {step} of run {batch.run_id!r} (batch {batch.number}, {batch.batch_hash}) failed for good: "
        f"{type(failure.error).__name__}: {failure.error}; look at the backend's log and at StepFailed in the "
        f"topic training-steps; {remedy}"
    )
