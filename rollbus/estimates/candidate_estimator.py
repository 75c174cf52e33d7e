"""The newest candidate → its estimate, published: the gate before the canary, without an operator.

Only the newest candidate is estimated, once, and only if it is newer than the serving version. A candidate that a
newer one replaces before its estimate began gets none. What fails is logged and tried again later: until then delivery
waits, and gives the candidate no traffic.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from rollbus.runtime.health.heart import Report
from rollbus.schemas.errors import RollbusError
from rollbus.schemas.records.config import ESTIMATES
from rollbus.trainer.operate.policy_on_log import KnownVersion, list_policy_versions
from rollbus.trainer.settings import TrainerSettings

logger = logging.getLogger(__name__)

LOOK_S = 10.0
Progress = Callable[[int, int], None]


def find_due(versions: list[KnownVersion]) -> int | None:
    """Return the newest candidate above the serving version, if it has no estimate."""
    serving = max((version.version for version in versions if version.is_serving), default=-1)
    newest = max(
        (version for version in versions if version.state == "candidate"),
        key=lambda version: version.version,
        default=None,
    )
    if (
        newest is None
        or newest.version <= serving
        or any(evaluation.name == ESTIMATES for evaluation in newest.evaluations)
    ):
        return None
    return newest.version


@dataclass(slots=True)
class CandidateEstimator:
    """Estimates the newest candidate when it is due; `run` until stopped."""

    settings: TrainerSettings
    estimate: Callable[[int, Progress], Awaitable[None]]
    """Takes a version, and what is told how far it is."""
    trouble: str | None = None
    _work: int = 0
    _due: int | None = None

    def report(self) -> Report:
        """Describe the candidate in work; `work` counts reports of progress, one for a few hundred episodes."""
        positions = {} if self._due is None else {"version": self._due}
        return Report(
            holds=(f"estimates of {self.settings.model}",),
            positions=positions,
            work=self._work,
            is_behind=self._due is not None,
            trouble=self.trouble,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Look for candidates until `stop` is set."""
        while not stop.is_set():
            try:
                self._due = find_due(list(await asyncio.to_thread(list_policy_versions, self.settings)))
                if self._due is not None:
                    await self.estimate(self._due, self._progress)
                self.trouble = None
            except RollbusError as error:
                trouble = f"no estimate, trying every {LOOK_S:.0f} s: {error}"
                if trouble != self.trouble:
                    logger.warning("%s", trouble)
                self.trouble = trouble
            self._due = None
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), LOOK_S)

    def _progress(self, done: int, of: int) -> None:
        self._work += 1
