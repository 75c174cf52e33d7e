"""A log that reads the next batch and its payload while the backend works, so that the next step has them at once.

Nothing is committed ahead: a batch read here is still the next one after a crash. What was excluded is asked when the
step begins, not here.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from rollbus.schemas.control import RunCommand
from rollbus.schemas.errors import UnavailableError
from rollbus.schemas.steps import Evaluation
from rollbus.schemas.trajectories import Location, Trajectory
from rollbus.trainer.accounting import members_of
from rollbus.trainer.ledger import LedgerRecord
from rollbus.trainer.log import NextBatch, Publication, TrainerLog

logger = logging.getLogger(__name__)

LOOK_S = 0.2
"""How long one look for a batch takes; the loop's own look begins when the last of these has ended."""


@dataclass(slots=True)
class _Ahead:
    following: NextBatch | None = None
    asked: frozenset[Location] = frozenset()
    payload: Mapping[Location, Trajectory] = field(default_factory=dict)


class ReadingAhead:
    """Fulfils `TrainerLog` around another one; `begin` when there is time, `enough` when it is over."""

    def __init__(self, log: TrainerLog) -> None:
        self._log = log
        self._task: asyncio.Task[_Ahead] | None = None
        self._ready = _Ahead()
        self._enough = True

    def begin(self) -> None:
        """Look for the batch after this one; harmless to repeat."""
        self._enough = False
        if self._task is None:
            self._task = asyncio.create_task(self._read())

    def enough(self) -> None:
        """Look no further; what has been found is kept."""
        self._enough = True

    async def open(self) -> None:
        """Forget what was read: the committed offset decides what comes next."""
        await self.forget()
        await self._log.open()

    async def read_ledger(self) -> Sequence[LedgerRecord]:
        """Ask the log."""
        return await self._log.read_ledger()

    async def next_batch(self, timeout_s: float) -> NextBatch | None:
        """Return the batch read ahead, or look for it."""
        self.enough()
        if self._task is not None:
            task, self._task = self._task, None
            self._ready = await task
        following, self._ready.following = self._ready.following, None
        return following or await self._log.next_batch(timeout_s)

    async def publish(self, publications: Sequence[Publication], *, next_offset: int | None = None) -> None:
        """Hand on."""
        await self._log.publish(publications, next_offset=next_offset)

    async def fetch(self, locations: Collection[Location]) -> Mapping[Location, Trajectory]:
        """Return what was read ahead, once, or read it."""
        ready, self._ready = self._ready, _Ahead()
        if ready.asked and ready.asked == frozenset(locations):
            return ready.payload
        return await self._log.fetch(locations)

    async def excluded_episodes(self) -> Collection[str]:
        """Ask the log."""
        return await self._log.excluded_episodes()

    async def paused(self) -> RunCommand | None:
        """Ask the log."""
        return await self._log.paused()

    async def evaluations(self) -> Sequence[Evaluation]:
        """Ask the log."""
        return await self._log.evaluations()

    async def close(self) -> None:
        """Stop reading ahead, then close."""
        await self.forget()
        await self._log.close()

    async def _read(self) -> _Ahead:
        ahead = _Ahead()
        while ahead.following is None and not self._enough:
            ahead.following = await self._log.next_batch(LOOK_S)
        if ahead.following is None:
            return ahead
        locations = [member.location for _, member in members_of(ahead.following.batch)]
        try:
            ahead.payload, ahead.asked = await self._log.fetch(locations), frozenset(locations)
        except UnavailableError as error:
            logger.info("payload of batch %d is not read ahead: %s", ahead.following.batch.number, error)
        return ahead

    async def forget(self) -> None:
        """Stop reading ahead; what was read comes again from the log after the next `open`."""
        task, self._task, self._ready = self._task, None, _Ahead()
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
