"""Decisions on who serves → what the model endpoint answers with, from a thread of its own.

The newest decision alone says who serves, so a process that starts again needs nothing else. Without a broker the last
known one holds.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import closing, suppress

from rollbus.runtime.kafka.decisions import follow_decisions
from rollbus.runtime.tasks import report_end, start_thread
from rollbus.schemas.errors import RollbusError
from rollbus.schemas.records.delivery import PolicyDecision
from rollbus.trainer.backends.model_settings import DecisionLog

logger = logging.getLogger(__name__)

STOP_S = 5.0


class DecisionFollower:
    """Follows the decisions on one model until it is stopped."""

    def __init__(self, log: DecisionLog, model: str, use: Callable[[PolicyDecision], None]) -> None:
        """`use` may block: nothing else runs in this thread."""
        self._log, self._model, self._use = log, model, use
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._task: asyncio.Task[None] | None = None
        self.trouble: str | None = None
        """Why the newest decision could not be followed."""

    def start(self) -> None:
        """Begin to follow."""
        self._thread = start_thread(self._run, "decisions", on_end=self._report_end, is_over=lambda: self._stopped)

    def stop(self) -> None:
        """Stop following; the last decision holds."""
        self._stopped = True
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel)
        if self._thread is not None:
            self._thread.join(STOP_S)

    def _report_end(self, error: BaseException) -> None:
        self.trouble = f"decisions are no longer followed; restart the server: {error}"
        report_end(error)

    def _run(self) -> None:
        self._task = self._loop.create_task(follow_decisions(self._log.kafka, self._log.namespace, self._apply))
        with closing(self._loop), suppress(asyncio.CancelledError):  # `stop` cancels
            self._loop.run_until_complete(self._task)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _apply(self, decision: PolicyDecision) -> None:
        if decision.model != self._model:
            return
        try:
            self._use(decision)
        except RollbusError as error:
            self.trouble = f"decision {decision.number} on {decision.model} cannot be followed: {error}"
            logger.error("%s", self.trouble)
            return
        self.trouble = None
        logger.info(
            "decision %d: %s %s, version %s serves, %s has %.0f%% of the episodes",
            *(decision.number, decision.action, decision.version, decision.serving, decision.canary),
            100 * decision.share,
        )
