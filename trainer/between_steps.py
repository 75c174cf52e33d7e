"""What is to be done between two steps: measure what is due, serve what has passed, keep to a pause, raise an alarm.

Nothing of it happens inside a step. The next step may be opened in the transaction that closes this one only where
`is_free` says that there is nothing to do.
"""

import logging
from collections.abc import Mapping

from rollbus.schemas.control import RunCommand
from rollbus.schemas.errors import ConfigurationError, RejectedError
from rollbus.schemas.steps import PolicyVersion, StepCompleted
from rollbus.schemas.topics import POLICY_VERSIONS, RUN_LOG
from rollbus.trainer.alarm import Metrics, find_alarm, pause_for
from rollbus.trainer.ledger import Ledger
from rollbus.trainer.lineage import Lineage
from rollbus.trainer.log import Publication
from rollbus.trainer.promotion import Promotion, find_promotion
from rollbus.trainer.step_context import LoopSettings, StepContext
from rollbus.trainer.taking_over import folded
from rollbus.trainer.validating import Validating, Validation
from rollbus.trainer.waiting import Stop

logger = logging.getLogger(__name__)


class BetweenSteps:
    """Lives as long as its trainer; what an evaluation plays goes on when the log is opened again."""

    def __init__(self, settings: LoopSettings, validation: Validation | None, stop: Stop) -> None:
        self._settings = settings
        self._validation = validation
        self._validating: Validating | None = None
        self._stop = stop
        self._paused_by: str | None = None
        self._refused: set[int] = set()
        """Versions that the backend would not serve."""
        self._recent: list[tuple[int, Metrics]] = []
        """Number and metrics of the last completed steps."""
        self._alarmed_at: int | None = None
        """Of the step that raised the last alarm; what led to it does not raise another after it."""

    async def prepare(self, context: StepContext) -> None:
        """Know the last steps, where the model is asked and what was measured; after every opening of the log."""
        await self._recall(context)
        if self._validation is None:
            return
        told = context.capabilities
        base_url = self._validation.base_url or (told.inference_url if told else None)
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
                clock_ms=context.clock_ms,
            )
        self._validating.take_in(await context.log.evaluations())

    async def close(self) -> None:
        """Give up the evaluation that runs."""
        if self._validating is not None:
            await self._validating.close()

    async def look(self, context: StepContext, *, to_the_end: bool = False) -> None:
        """Measure what is due beside training, write down what was measured since, serve what has passed."""
        if context.ledger.open_step is not None:
            return
        if self._validating is not None:
            lineage, wait_for = context.ledger.lineage, self._stop.unless_asked
            if found := await self._validating.look(lineage, wait_for=wait_for, to_the_end=to_the_end):
                await context.publish(tuple(found))
        await self._promote_what_passed(context)

    def is_free(self, ledger: Ledger) -> bool:
        """Whether nothing will be due once the step in work is closed."""
        if self._stop.asked or self._settings.promote_if is not None:
            return False
        head = ledger.lineage.head
        if self._validating is None or head is None:
            return True
        steps = len(ledger.lineage.lags(head))  # above the root, once the new version is there
        return self._settings.serve_at_once and not self._validating.is_due_at(steps)

    async def standing_pause(self, context: StepContext) -> RunCommand | None:
        """Return the command by which the run's log says to wait; a step that was started is closed first."""
        if context.ledger.open_step is not None:
            return None
        pause = await context.log.paused()
        if pause is not None and pause.command_id != self._paused_by:
            logger.warning("run %s takes no batches: %s", pause.run_id, pause.comment or "paused by an operator")
        elif pause is None and self._paused_by is not None:
            logger.info("run %s goes on", self._settings.run_id)
        self._paused_by = None if pause is None else pause.command_id
        return pause

    def alarm(self, step: int, metrics: Metrics) -> RunCommand | None:
        """Take in a step; return the pause where the last ones, since the start or the last alarm, ran away.

        The same step again, as after a transaction that failed, gives the same pause again.
        """
        if self._settings.alarm is None:
            return None
        after = self._alarmed_at if self._alarmed_at is not None and self._alarmed_at < step else -1
        before = [each for each in self._recent if after < each[0] < step]
        self._recent = [*before, (step, metrics)][-self._settings.alarm.window_steps :]
        found = find_alarm(self._recent, self._settings.alarm)
        if found is None:
            return None
        self._alarmed_at = step
        return pause_for(found, self._settings.run_id)

    async def _recall(self, context: StepContext) -> None:
        """Let the alarm look at the steps of the trainers before as it would have, had none of them ended.

        Those that were rolled back raise no alarm after it: what they say is of weights that were given up.
        """
        if self._settings.alarm is None or self._recent:
            return
        lineage, made = context.ledger.lineage, dict[int, int]()
        newest: int | None = None
        for record in await context.log.read_ledger():
            if isinstance(record, StepCompleted) and record.run_id == self._settings.run_id:
                if record.base_version != newest:
                    self._keep_those_below(record.base_version, lineage, made)
                self.alarm(record.step, record.metrics)
                made[record.step] = newest = record.policy_version
        if lineage.head is not None and lineage.head != newest:
            self._keep_those_below(lineage.head, lineage, made)

    def _keep_those_below(self, version: int, lineage: Lineage, made: Mapping[int, int]) -> None:
        """Forget the steps that did not lead to a version; `made` has by step what it made."""
        below = lineage.lags(version)
        self._recent = [each for each in self._recent if made[each[0]] in below]

    async def _promote_what_passed(self, context: StepContext) -> None:
        """Decide again by the log as it is now: an operator may have served another, or rolled back, meanwhile."""
        rule = self._settings.promote_if
        if rule is None:
            return
        evaluations = await context.log.evaluations()
        found = find_promotion(evaluations, context.ledger.lineage, rule)
        if found is None or found.version in self._refused:
            return
        context.ledger = await folded(context.log, self._settings)
        found = find_promotion(evaluations, context.ledger.lineage, rule)
        if found is not None and found.version not in self._refused:
            await self._promote(context, found)

    async def _promote(self, context: StepContext, found: Promotion) -> None:
        """Serve the candidate; the backend first, then the log says so."""
        lineage = context.ledger.lineage
        record = PolicyVersion(
            model=self._settings.model,
            version=found.version,
            parent=lineage.parents[found.version],
            run_id=self._settings.run_id,
            checkpoint=lineage.checkpoints[found.version],
            state="serving",
            reason=found.reason,
            changed_at_ms=context.clock_ms(),
        )
        try:
            await context.backend.promote(found.version)
        except RejectedError as error:
            self._refused.add(found.version)
            logger.warning("version %d passed its evaluation but is not served: %s", found.version, error)
            return
        await context.publish(
            (
                Publication(POLICY_VERSIONS, self._settings.model, record),
                Publication(RUN_LOG, self._settings.run_id, record),
            )
        )
        logger.info("version %d is served: %s", found.version, found.reason)
