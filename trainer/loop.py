"""The batches of a run, in order, each become one training step; the loop that owns a run's training.

log (log_kafka)     in: ledger and batches of the run; out: steps, versions, outcomes, drops with the offset
reading_ahead       the next batch and its payload, while the backend works
ledger, lineage     which step is next, from which weights, and what was done before a crash
step                one batch, from its members' payload to the transaction that closes it
door, accounting    what is trained and what is dropped, and the records that say so
alarm               metrics of the last steps → a pause, where training runs away
validating          versions that are due → evaluations on held-out tasks, played beside training
promotion           evaluations → the candidate that is served
backend             scored token rows → new weights; its journal says what happened while nobody listened
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from rollbus.schemas.errors import ConfigurationError, RejectedError, RunStoppedError, UnavailableError
from rollbus.schemas.groups import TrainingBatch
from rollbus.schemas.steps import PolicyVersion
from rollbus.schemas.topics import POLICY_VERSIONS, RUN_LOG
from rollbus.trainer.alarm import Metrics, find_alarm, pause_for
from rollbus.trainer.backends.protocol import Backend, Capabilities, TrainResult, Versions
from rollbus.trainer.ledger import AlreadyDone, Ledger
from rollbus.trainer.log import NextBatch, Publication, TrainerLog
from rollbus.trainer.promotion import find_promotion
from rollbus.trainer.reading_ahead import ReadingAhead
from rollbus.trainer.step import (
    LoopSettings,
    StepContext,
    StepFailureError,
    StoppedWaitingError,
    heads_differ,
    record_failure,
    skip_rejected,
    train_batch,
)
from rollbus.trainer.validating import Validating, Validation

logger = logging.getLogger(__name__)

REOPEN_PAUSES_S = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Between attempts to reach a log or backend that is away; the last repeats, since a broker may be down for long."""

PAUSED_LOOK_S = 1.0
"""Between looks at the log while the run is paused."""

T = TypeVar("T")


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
        self._validation = validation
        self._validating: Validating | None = None
        self._clock_ms = clock_ms
        self._sleep = sleep
        self._stop = asyncio.Event()
        self._paused_by: str | None = None
        self._refused: set[int] = set()
        """Versions that the backend would not serve."""
        self._recent: list[tuple[int, Metrics]] = []
        """Number and metrics of the last completed steps."""
        self._context = self._new_context(Ledger(settings.run_id, settings.model), None)

    @property
    def ledger(self) -> Ledger:
        """What the trainer knows of the run now."""
        return self._context.ledger

    def stop(self) -> None:
        """Ask the loop to end: between batches, or while it waits for a backend that goes on by itself."""
        self._stop.set()

    async def run(self, *, until_idle: bool = False) -> None:
        """Train every batch as it comes; returns when stopped, or with `until_idle` when there is none.

        Raises FencedError when another trainer took over, RunStoppedError when a step failed for good, DataLossError
        where log and backend contradict each other.
        """
        try:
            with suppress(StoppedWaitingError):
                await self._run(until_idle=until_idle)
        finally:
            await self._log.forget()
            if self._validating is not None:
                await self._validating.close()

    async def _run(self, *, until_idle: bool) -> None:
        failures = 0
        while not self._stop.is_set():
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
                await self._pause(pause)

    async def settle(self) -> None:
        """Take over and close the step that was left open, if there is one: then nothing of the run is in flight."""
        await self._open(agree=False)
        try:
            while self.ledger.open_step is not None:
                following = await self._log.next_batch(self._settings.batch_wait_s)
                if following is None:
                    step = self.ledger.open_step.step
                    raise UnavailableError(f"the batch of open step {step} does not come; try again")
                await self._handle(following)
        finally:
            await self._log.forget()

    async def _open(self, *, agree: bool = True) -> None:
        """Take over, fold the ledger, and bring log and backend to agree.

        First fence the trainer before, then read: nothing of its can be written after what was read.
        """
        await self._log.open()
        ledger = await self._folded()
        capabilities = await self._backend.capabilities()
        if capabilities.model != self._settings.model:
            raise ConfigurationError(
                f"run {self._settings.run_id!r} trains model {self._settings.model!r}, but the {capabilities.backend} "
                f"backend holds {capabilities.model!r}; set the trainer's model, or point it at another server"
            )
        self._context = self._new_context(ledger, capabilities)
        await self._prepare_validation(capabilities.inference_url)
        versions = await self._backend.versions()
        if ledger.closed_steps == 0 and ledger.open_step is None:
            await self._announce(versions)
        if not agree:
            return
        if ledger.open_step is None and ledger.lineage.head != versions.head:
            raise heads_differ(ledger, versions.head)
        serving = ledger.lineage.serving
        if ledger.open_step is None and serving is not None and serving != versions.serving:
            await self._backend.promote(serving)
        logger.info(
            "trainer open run=%s model=%s steps=%d head=%s open_step=%s",
            *(ledger.run_id, ledger.model, ledger.closed_steps, ledger.lineage.head, ledger.open_step),
        )

    async def _folded(self) -> Ledger:
        ledger = Ledger(self._settings.run_id, self._settings.model)
        for record in await self._log.read_ledger():
            ledger.apply(record)
        return ledger

    def _new_context(self, ledger: Ledger, capabilities: Capabilities | None) -> StepContext:
        return StepContext(
            log=self._log,
            backend=self._backend,
            settings=self._settings,
            ledger=ledger,
            clock_ms=self._clock_ms,
            wait=self._wait,
            capabilities=capabilities,
        )

    async def _train_batches(self, *, until_idle: bool) -> None:
        while not self._stop.is_set():
            await self._validate()
            await self._promote_what_passed()
            paused = await self._is_paused()
            following = None if paused else await self._log.next_batch(self._settings.batch_wait_s)
            if following is not None:
                await self._handle(following)
            elif until_idle:
                await self._validate(to_the_end=True)
                await self._promote_what_passed()
                return
            elif paused:
                await self._pause(PAUSED_LOOK_S)

    async def _is_paused(self) -> bool:
        """Whether the run's log says to wait; a step that was started is closed first."""
        if self.ledger.open_step is not None:
            return False
        pause = await self._log.paused()
        if pause is not None and pause.command_id != self._paused_by:
            logger.warning("run %s takes no batches: %s", pause.run_id, pause.comment or "paused by an operator")
        elif pause is None and self._paused_by is not None:
            logger.info("run %s goes on", self._settings.run_id)
        self._paused_by = None if pause is None else pause.command_id
        return pause is not None

    async def _prepare_validation(self, inference_url: str | None) -> None:
        """Know where the model is asked and what was measured before; what runs goes on when the log is reopened."""
        if self._validation is None:
            return
        base_url = self._validation.base_url or inference_url
        if base_url is None:
            raise ConfigurationError(
                f"run {self._settings.run_id!r} has a validation set, but its backend serves no model to ask; "
                "set `trainer: {validation: {base_url: …}}`, or leave validation out"
            )
        if self._validating is None:
            self._validating = Validating(
                self._validation,
                model=self._settings.model,
                run_id=self._settings.run_id,
                base_url=base_url,
                clock_ms=self._clock_ms,
            )
        self._validating.take_in(await self._log.evaluations())

    async def _validate(self, *, to_the_end: bool = False) -> None:
        """Measure the versions that are due beside training, and write down what was measured since."""
        if self._validating is None or self.ledger.open_step is not None:
            return
        found = await self._validating.look(self.ledger.lineage, wait_for=self._unless_stopped, to_the_end=to_the_end)
        if found:
            await self._context.publish(tuple(found))

    async def _promote_what_passed(self) -> None:
        """Serve the newest candidate that its evaluation lets through; the backend first, then the log says so."""
        rule = self._settings.promote_if
        if rule is None or self.ledger.open_step is not None:
            return
        found = find_promotion(await self._log.evaluations(), self.ledger.lineage, rule)
        if found is None or found.version in self._refused:
            return
        lineage = self.ledger.lineage
        record = PolicyVersion(
            model=self._settings.model,
            version=found.version,
            parent=lineage.parents[found.version],
            run_id=self._settings.run_id,
            checkpoint=lineage.checkpoints[found.version],
            state="serving",
            reason=found.reason,
            changed_at_ms=self._clock_ms(),
        )
        try:
            await self._backend.promote(found.version)
        except RejectedError as error:
            self._refused.add(found.version)
            logger.warning("version %d passed its evaluation but is not served: %s", found.version, error)
            return
        await self._context.publish(
            (
                Publication(POLICY_VERSIONS, self._settings.model, record),
                Publication(RUN_LOG, self._settings.run_id, record),
            )
        )
        logger.info("version %d is served: %s", found.version, found.reason)

    async def _watch(self) -> None:
        """Pause the run where its last steps, since the start or the last alarm, ran away."""
        last, limits = self.ledger.last_completed, self._settings.alarm
        if limits is None or last is None or (self._recent and self._recent[-1][0] == last.step):
            return
        self._recent = [*self._recent, (last.step, last.metrics)][-limits.window_steps :]
        alarm = find_alarm(self._recent, limits)
        if alarm is not None:
            self._recent = []
            command = pause_for(alarm, self._settings.run_id)
            await self._context.publish((Publication(RUN_LOG, self._settings.run_id, command),))

    async def _handle(self, following: NextBatch) -> None:
        """Bring one batch to its outcome; a failed attempt is written down and tried again after a growing pause."""
        batch, context = following.batch, self._context
        if batch.model != self._settings.model:
            raise ConfigurationError(
                f"batch {batch.number} of run {batch.run_id!r} is for model {batch.model!r}, and this trainer holds "
                f"{self._settings.model!r}; give the run and its trainer the same model"
            )
        head = await self._follow_operator()
        pauses = iter(self._settings.retry_pauses_s)
        while True:
            decision = context.ledger.decide(batch)
            if isinstance(decision, AlreadyDone):
                logger.info("batch %s is step %d already", batch.batch_hash, decision.step)
                await context.publish((), next_offset=following.next_offset)
                return
            try:
                await train_batch(context, following, decision, head=head)
                break
            except StepFailureError as failure:
                head = None
                pause = next(pauses, None) if failure.retriable else None
                await record_failure(context, batch, failure, final=pause is None)
                if pause is not None:
                    logger.warning("step %d failed, next try in %.0f s: %s", decision.step, pause, failure)
                    await self._pause(pause)
                elif self._settings.skip_rejected and not failure.retriable and context.ledger.open_step is not None:
                    await skip_rejected(context, following, failure)
                    break
                else:
                    raise RunStoppedError(_what_to_look_at(batch, decision.step, failure)) from failure.error
        await self._watch()
        self._check_budget()

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
            self._context.ledger = await self._folded()
        return head

    async def _announce(self, versions: Versions) -> None:
        """Before a run's first step: say which versions there are, the head last, to those who do not know."""
        known = sorted(versions.known, key=lambda each: (each.version == versions.head, each.version))
        publications: list[Publication] = []
        for each in known:
            record = PolicyVersion(
                model=self._settings.model,
                version=each.version,
                parent=each.parent,
                batch_hash=each.batch_hash,
                checkpoint=each.checkpoint,
                state="serving" if each.version == versions.serving else "candidate",
                reason="found in the backend before the first step",
                changed_at_ms=self._clock_ms(),
            )
            if each.version not in self.ledger.lineage.parents:
                publications.append(Publication(POLICY_VERSIONS, self._settings.model, record))
            if each.version == versions.head:
                publications.append(Publication(RUN_LOG, self._settings.run_id, record))
        await self._context.publish(tuple(publications))

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
        return await (waiting if self._settings.finish_on_stop else self._unless_stopped(waiting))

    async def _pause(self, seconds: float) -> None:
        await self._unless_stopped(self._sleep(seconds))

    async def _unless_stopped(self, awaitable: Awaitable[T]) -> T:
        """Await, but give up when asked to stop."""
        task, stopped = asyncio.ensure_future(awaitable), asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise StoppedWaitingError
        finally:
            for each in (task, stopped):
                each.cancel()
            await asyncio.gather(task, stopped, return_exceptions=True)


def _what_to_look_at(batch: TrainingBatch, step: int, failure: StepFailureError) -> str:
    remedy = (
        "start the trainer again when the backend is back"
        if failure.retriable
        else "correct the cause and start the trainer again, or let it drop such batches with `on_rejected: skip`"
    )
    return (
        f"step {step} of run {batch.run_id!r} (batch {batch.number}, {batch.batch_hash}) failed for good: "
        f"{type(failure.error).__name__}: {failure.error}; look at the backend's log and at StepFailed in the "
        f"topic training-steps; {remedy}"
    )
