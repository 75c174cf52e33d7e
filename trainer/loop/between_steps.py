"""Between two steps: measure versions that are due, serve the one that passed, keep a pause, raise an alarm.

None of this happens inside a step. The transaction that closes a step may open the next one only if `is_free` says
that there is nothing to do in between.
"""

import logging
from collections.abc import Mapping

from rollbus.runtime.health.alarms.divergence import Metrics, find_alarm, pause_for
from rollbus.schemas.errors import ConfigurationError, RejectedError
from rollbus.schemas.records.control import RunCommand
from rollbus.schemas.records.steps import StepCompleted
from rollbus.trainer.ledger.ledger import Ledger
from rollbus.trainer.ledger.lineage import Lineage
from rollbus.trainer.loop.context import StepContext
from rollbus.trainer.loop.taking_over import read_ledger
from rollbus.trainer.loop.waiting import Stop
from rollbus.trainer.serving import serve_version
from rollbus.trainer.settings import TrainerSettings
from rollbus.trainer.validation.promotion import Promotion, find_promotion
from rollbus.trainer.validation.validating import Validating, Validation

logger = logging.getLogger(__name__)


class BetweenSteps:
    """Lives as long as its trainer; what an evaluation plays goes on when the log is opened again."""

    def __init__(self, settings: TrainerSettings, validation: Validation | None, stop: Stop) -> None:
        self._settings = settings
        self._validation = validation
        self._validating: Validating | None = None
        self._stop = stop
        self._paused_by: str | None = None
        self.standing: str | None = None
        """Why the run takes no batches, for people; None while it does."""
        self._refused: set[int] = set()
        """Versions that the backend would not serve."""
        self._recent: list[tuple[int, Metrics]] = []
        """Number and metrics of the last completed steps."""
        self._alarmed_at: int | None = None
        """Number of the step that raised the last alarm; the steps before it do not raise another."""

    async def prepare(self, context: StepContext) -> None:
        """Learn the last steps, the model's endpoint and the known evaluations; after every opening of the log."""
        await self._replay_steps(context)
        if self._validation is None:
            return
        capabilities = context.capabilities
        base_url = self._validation.settings.base_url or (capabilities.inference_url if capabilities else None)
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
        """Cancel the running evaluation."""
        if self._validating is not None:
            await self._validating.close()

    async def measure_and_promote(self, context: StepContext, *, to_the_end: bool = False) -> None:
        """Start evaluations that are due, publish those that ended, and serve the candidate that passed."""
        if context.ledger.open_step is not None:
            return
        if self._validating is not None:
            lineage, wait_for = context.ledger.lineage, self._stop.unless_asked
            if passed := await self._validating.measure_due(lineage, wait_for=wait_for, to_the_end=to_the_end):
                await context.publish(tuple(passed))
        await self._promote_passed(context)

    def is_free(self, ledger: Ledger) -> bool:
        """Whether nothing will be due once the step in work is closed."""
        if self._stop.requested or self._settings.promote_if is not None:
            return False
        head = ledger.lineage.head
        if self._validating is None or head is None:
            return True
        steps = len(ledger.lineage.lags(head))  # above the root, once the new version exists
        return self._settings.serve_at_once and not self._validating.is_due_at(steps)

    async def find_pause(self, context: StepContext) -> RunCommand | None:
        """Return the pause that holds now; None while a step is open, since that is closed first."""
        if context.ledger.open_step is not None:
            return None
        pause = await context.log.paused()
        if pause is not None and pause.command_id != self._paused_by:
            logger.warning("run %s takes no batches: %s", pause.run_id, pause.comment or "paused by an operator")
        elif pause is None and self._paused_by is not None:
            logger.info("run %s goes on", self._settings.run_id)
        self._paused_by = None if pause is None else pause.command_id
        self.standing = _describe_standing(pause, await context.log.stopped())
        return pause

    def alarm(self, step: int, metrics: Metrics) -> RunCommand | None:
        """Count a step; return a pause if the steps since the start or the last alarm diverged.

        The same step gives the same pause again, as after a transaction that failed.
        """
        if self._settings.alarm is None:
            return None
        after = self._alarmed_at if self._alarmed_at is not None and self._alarmed_at < step else -1
        before = [entry for entry in self._recent if after < entry[0] < step]
        self._recent = [*before, (step, metrics)][-self._settings.alarm_window_steps :]
        passed = find_alarm(self._recent, self._settings.alarm, self._settings.alarm_window_steps)
        if passed is None:
            return None
        self._alarmed_at = step
        return pause_for(passed, self._settings.run_id)

    async def _replay_steps(self, context: StepContext) -> None:
        """Show the alarm the steps of earlier trainers, as if this trainer had made them.

        Steps that were rolled back do not count: their metrics are of weights that were given up.
        """
        if self._settings.alarm is None or self._recent:
            return
        lineage, version_of_step = context.ledger.lineage, dict[int, int]()
        newest: int | None = None
        for record in await context.log.read_ledger():
            if isinstance(record, StepCompleted) and record.run_id == self._settings.run_id:
                if record.base_version != newest:
                    self._keep_steps_below(record.base_version, lineage, version_of_step)
                self.alarm(record.step, record.metrics)
                version_of_step[record.step] = newest = record.policy_version
        if lineage.head is not None and lineage.head != newest:
            self._keep_steps_below(lineage.head, lineage, version_of_step)

    def _keep_steps_below(self, version: int, lineage: Lineage, version_of_step: Mapping[int, int]) -> None:
        """Forget the steps that did not lead to a version; `made` maps a step to its version."""
        below = lineage.lags(version)
        self._recent = [entry for entry in self._recent if version_of_step[entry[0]] in below]

    async def _promote_passed(self, context: StepContext) -> None:
        """Find a candidate, then decide again by the newest log: an operator may have acted meanwhile."""
        rule = self._settings.promote_if
        if rule is None:
            return
        evaluations = await context.log.evaluations()
        passed = find_promotion(evaluations, context.ledger.lineage, rule)
        if passed is None or passed.version in self._refused:
            return
        context.ledger = await read_ledger(context.log, self._settings)
        passed = find_promotion(evaluations, context.ledger.lineage, rule)
        if passed is not None and passed.version not in self._refused:
            await self._promote(context, passed)

    async def _promote(self, context: StepContext, passed: Promotion) -> None:
        """Serve the candidate, unless the backend refuses it."""
        try:
            await serve_version(
                context.backend,
                context.publish,
                context.ledger.lineage,
                self._settings,
                version=passed.version,
                reason=passed.reason,
                now_ms=context.clock_ms(),
            )
        except RejectedError as error:
            self._refused.add(passed.version)
            logger.warning("version %d passed its evaluation but is not served: %s", passed.version, error)
            return
        logger.info("version %d is served: %s", passed.version, passed.reason)


def _describe_standing(pause: RunCommand | None, stop: RunCommand | None) -> str | None:
    """Return in words what holds a run back: the pause, by which no batch is taken, before the stop."""
    if pause is not None:
        return f"{pause.comment or 'paused by an operator'}; `rollbus trainer resume` continues it"
    if stop is not None:
        return f"{stop.comment or 'stopped by an operator'}; `rollbus run resume` continues it"
    return None
