"""The batches of a run, in order, each become one training step; the loop that owns a run's training.

log (log_kafka)     in: ledger and batches of the run; out: steps, versions, outcomes, drops with the offset
taking_over         log and backend agree before the first step, whichever trainer ran before
reading_ahead       the next batch and its payload, inspected (inspection), while the backend works
ledger, lineage     which step is next, from which weights, and what was finished before a crash
opening             a batch and its members' payload → an opened step
step                an opened step → the transaction that closes it, and may open the next
door, accounting    what is trained and what is dropped, and the records that say so
between_steps       evaluations (validating), the candidate that is served (promotion), pauses, the alarm
backend             scored token rows → new weights; its journal says what happened while the trainer was away
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

from rollbus.runtime.health.heart import Report
from rollbus.schemas.drop_words import UNKNOWN, WORDS
from rollbus.schemas.errors import ConfigurationError, FencedError, RejectedError, RunStoppedError, UnavailableError
from rollbus.schemas.records.control import RunCommand
from rollbus.schemas.records.groups import TrainingBatch
from rollbus.schemas.wall_clock import wall_clock_ms
from rollbus.trainer.backends.protocol import TERMINAL_STATES, Backend, Capabilities, TrainResult
from rollbus.trainer.ledger.ledger import AlreadyDone, Ledger
from rollbus.trainer.ledger.log import ReceivedBatch, TrainerLog
from rollbus.trainer.loop.between_steps import BetweenSteps
from rollbus.trainer.loop.context import StepContext, StepFailureError, StoppedWaitingError
from rollbus.trainer.loop.opening import ReadyStep, open_step
from rollbus.trainer.loop.reading_ahead import ReadingAhead
from rollbus.trainer.loop.step import record_failure, skip_rejected, train_step
from rollbus.trainer.loop.taking_over import agree_on_head, announce_versions, check_model, read_ledger
from rollbus.trainer.loop.waiting import Stop
from rollbus.trainer.settings import TrainerSettings
from rollbus.trainer.validation.validating import Validation

logger = logging.getLogger(__name__)

REOPEN_PAUSES_S = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Between attempts to reach a log or backend; the last one repeats, since a broker may be down for long."""

PAUSED_LOOK_S = 1.0
"""Between checks of the log while the run is paused."""


class Trainer:
    """The one trainer of a model, for one run; `run` until stopped."""

    def __init__(
        self,
        log: TrainerLog,
        backend: Backend,
        settings: TrainerSettings,
        *,
        validation: Validation | None = None,
        clock_ms: Callable[[], int] = wall_clock_ms,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._log = log
        self._ahead = ReadingAhead(log)
        self._backend = backend
        self._settings = settings
        self._clock_ms = clock_ms
        self._stop = Stop(sleep)
        self._between = BetweenSteps(settings, validation, self._stop)
        self._settling = False
        self._trouble: str | None = None
        """What the last attempt failed by; None once one has succeeded."""
        self._context = self._new_context(Ledger(settings.run_id, settings.model), None)

    @property
    def ledger(self) -> Ledger:
        """What the trainer knows of the run now."""
        return self._context.ledger

    def report(self) -> Report:
        """Say which run and model this trainer holds, how many steps are closed, and whether one is open."""
        settings, ledger = self._settings, self.ledger
        return Report(
            holds=(f"run {settings.run_id} of {settings.model}",),
            positions={"step": ledger.closed_steps, "version": ledger.lineage.head or 0},
            work=ledger.closed_steps,
            is_behind=ledger.open_step is not None or self._trouble is not None,
            trouble=self._trouble,
            standing=self._between.standing,
        )

    def stop(self) -> None:
        """Ask the loop to end: between batches, or while it waits for a backend in another process."""
        self._stop.ask()

    async def run(self, *, until_idle: bool = False) -> None:
        """Train every batch as it comes; return when stopped, or with `until_idle` after the last batch of the log.

        Raise FencedError if another trainer took over, DataLossError if log and backend contradict each other, and
        RunStoppedError if a step failed for good or, with `until_idle`, a pause holds back the rest.
        """
        try:
            with suppress(StoppedWaitingError):
                await self._run(until_idle=until_idle)
        finally:
            await self._ahead.forget()
            await self._between.close()

    async def settle(self) -> None:
        """Take over and close the step that was left open, if there is one.

        A step that cannot be trained stays open, and so does one whose base was rolled back: the next trainer trains
        it from the head of the log.
        """
        self._settling = True
        await self._open()
        step = None
        try:
            while (step := self.ledger.open_step) is not None and step.base_version == self.ledger.lineage.head:
                received = await self._ahead.next_batch(self._settings.batch_wait_s)
                if received is None:
                    raise UnavailableError(f"the batch of open step {step.step} does not come; try again")
                await self._train_batch(received)
        except RunStoppedError as error:
            if step is not None and await self._is_under_way(step.batch_hash):
                raise
            logger.warning("left to the next trainer: %s", error)
        finally:
            await self._ahead.forget()
            self._settling = False

    async def _run(self, *, until_idle: bool) -> None:
        failures = 0
        while not self._stop.requested:
            try:
                await self._open()
                failures, self._trouble = 0, None
                await self._train_batches(until_idle=until_idle)
                return
            except UnavailableError as error:
                pause = REOPEN_PAUSES_S[min(failures, len(REOPEN_PAUSES_S) - 1)]
                failures, self._trouble = failures + 1, str(error)
                logger.warning("log or backend cannot be reached, opening again in %.0f s: %s", pause, error)
                await self._ahead.close()
                await self._stop.pause(pause)

    async def _open(self) -> None:
        """Take over the run; while settling, log and backend may differ, since a rollback repairs that."""
        await self._ahead.open()
        ledger = await read_ledger(self._log, self._settings)
        capabilities = await self._backend.capabilities()
        check_model(capabilities, self._settings)
        self._context = context = self._new_context(ledger, capabilities)
        await self._between.prepare(context)
        versions = await self._backend.versions()
        await announce_versions(context, versions)
        if self._settling:
            return
        await agree_on_head(context, versions)
        logger.info(
            "trainer open run=%s model=%s steps=%d head=%s open_step=%s",
            *(ledger.run_id, ledger.model, ledger.closed_steps, ledger.lineage.head, ledger.open_step),
        )

    def _new_context(self, ledger: Ledger, capabilities: Capabilities | None) -> StepContext:
        return StepContext(
            log=self._log,
            ahead=self._ahead,
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
        ready_step: ReadyStep | None = None
        while not self._stop.requested:
            if ready_step is not None:
                ready_step = await self._train_batch(ready_step.received, ready_step)
                continue
            await self._between.measure_and_promote(self._context)
            pause = await self._between.find_pause(self._context)
            received = None if pause else await self._ahead.next_batch(self._settings.batch_wait_s)
            if received is not None:
                ready_step = await self._train_batch(received)
            elif until_idle and await self._is_done(pause):
                await self._between.measure_and_promote(self._context, to_the_end=True)
                return
            else:
                await self._check_in_charge()
                if pause:
                    await self._stop.pause(PAUSED_LOOK_S)

    async def _is_done(self, pause: RunCommand | None) -> bool:
        """Whether no batch is left; RunStoppedError if a pause holds one back."""
        if pause is None:
            return await self._ahead.at_end()
        waiting = await self._ahead.next_batch(self._settings.batch_wait_s, skip_unreadable=False)
        if waiting is not None or not await self._ahead.at_end():
            raise _paused_error(pause)
        return True

    async def _train_batch(self, received: ReceivedBatch, ready_step: ReadyStep | None = None) -> ReadyStep | None:
        """Bring one batch to its outcome; record a failed attempt and repeat it after a growing pause.

        Return the next step if it was opened with the end of this one.
        """
        batch, context = received.batch, self._context
        head = None
        if ready_step is None:
            self._check_batch_model(batch)
            head = await self._reload_if_head_moved()
        pauses = iter(() if self._settling else self._settings.retry_pauses_s)
        while True:
            try:
                if ready_step is None:
                    decision = context.ledger.decide(batch)
                    if isinstance(decision, AlreadyDone):
                        logger.info("batch %s is step %d already", batch.batch_hash, decision.step)
                        await context.publish((), next_offset=received.next_offset)
                        return None
                    ready_step = await open_step(context, received, decision, head=head)
                next_opened = await train_step(context, ready_step)
                self._trouble = None
                break
            except StepFailureError as failure:
                self._trouble = f"batch {batch.number}: {failure}"
                head = ready_step = None
                pause = next(pauses, None) if failure.retriable else None
                await record_failure(context, batch, failure, final=pause is None)
                if pause is not None:
                    logger.warning("batch %d failed, next try in %.0f s: %s", batch.number, pause, failure)
                    await self._stop.pause(pause)
                elif await self._may_skip(batch, failure):
                    await skip_rejected(context, received, failure)
                    next_opened = None
                    break
                else:
                    step = context.ledger.closed_steps + 1
                    skips = self._settings.on_rejected == "skip"
                    raise RunStoppedError(_describe_failure(batch, step, failure, skips=skips)) from failure.error
        self._stop_if_nothing_trains()
        return next_opened

    async def _may_skip(self, batch: TrainingBatch, failure: StepFailureError) -> bool:
        """Whether to drop the batch: not if it was trained and a later act was refused."""
        if self._settings.on_rejected == "stop" or failure.retriable or self.ledger.open_step is None:
            return False
        result = await self._backend.journal(batch.batch_hash)
        return result is None or result.state == "skipped"

    async def _is_under_way(self, batch_hash: str) -> bool:
        """Whether the backend may still make a version of a batch."""
        try:
            return (await self._backend.status(batch_hash)).state not in TERMINAL_STATES
        except RejectedError:  # it never came there
            return False

    async def _reload_if_head_moved(self) -> int | None:
        """Return the backend's head; read the ledger again if it has moved, by a rollback for example."""
        ledger = self._context.ledger
        if ledger.open_step is not None:
            return None
        try:
            head = (await self._backend.versions()).head
        except Exception:  # the step itself meets the same failure, and records it
            return None
        if head != ledger.lineage.head:
            self._context.ledger = await read_ledger(self._log, self._settings)
        return head

    async def _check_in_charge(self) -> None:
        """Raise FencedError if a rollback or another trainer took over meanwhile; the broker notices only writers."""
        head = self.ledger.lineage.head
        await self._reload_if_head_moved()
        if self.ledger.lineage.head != head:
            raise FencedError(
                f"model {self._settings.model!r} is trained on from version {self.ledger.lineage.head} and no longer "
                f"from {head}: a rollback or another trainer took over; start this trainer again to go on from there"
            )
        await self._log.require_charge()

    def _check_batch_model(self, batch: TrainingBatch) -> None:
        if batch.model != self._settings.model:
            raise ConfigurationError(
                f"batch {batch.number} of run {batch.run_id!r} is for model {batch.model!r}, and this trainer holds "
                f"{self._settings.model!r}; give the run and its trainer the same model"
            )

    def _stop_if_nothing_trains(self) -> None:
        skipped = self.ledger.skipped_in_a_row
        if skipped >= self._settings.max_skipped_in_a_row:
            raise RunStoppedError(
                f"run {self._settings.run_id!r}: the last {skipped} batches trained nothing. "
                f"{explain_reasons(self.ledger.skipped_reasons)}; each is in topic `drops` (stage trainer)"
            )

    async def _wait(self, waiting: Awaitable[TrainResult]) -> TrainResult:
        self._ahead.begin()
        return await (waiting if self._settings.backend_is_inside else self._stop.unless_asked(waiting))


def explain_reasons(reasons: Counter[str]) -> str:
    """Return what each reason means, how many trajectories it kept out, and what to do; the most frequent first."""
    return "; ".join(
        f"{count} trajectories {words.what} (`{reason}`): {words.remedy}"
        for reason, count in reasons.most_common()
        for words in [WORDS.get(reason, UNKNOWN)]
    )


def _paused_error(pause: RunCommand) -> RunStoppedError:
    """Return the error for a run that should train up to its last batch and is paused."""
    why = pause.comment or "an operator gave no reason"
    return RunStoppedError(
        f"run {pause.run_id!r} is paused before its last batch ({why}); to train what is left, "
        "`rollbus trainer resume` and the same command again"
    )


def _describe_failure(batch: TrainingBatch, step: int, failure: StepFailureError, *, skips: bool) -> str:
    remedy = "start the trainer again when the backend is back"
    if not failure.retriable:
        remedy = "correct the cause and start the trainer again"
        remedy += "" if skips else ", or let it drop such batches with `on_rejected: skip`"
    return (
        f"step {step} of run {batch.run_id!r} (batch {batch.number}, {batch.batch_hash}) failed for good: "
        f"{type(failure.error).__name__}: {failure.error}; look at the backend's log and at StepFailed in the "
        f"topic training-steps; {remedy}"
    )
