"""The log as a step sees it: the next batch and its payload, inspected, are read while the backend works.

Nothing is written or committed ahead: a batch read here is still the next one after a crash, and a record that is no
batch waits for the loop's own look. What was excluded is asked when the step begins, not here.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from rollbus.schemas.control import RunCommand
from rollbus.schemas.errors import UnavailableError
from rollbus.schemas.steps import Evaluation
from rollbus.schemas.trajectories import Location
from rollbus.trainer.accounting import members_of
from rollbus.trainer.inspection import Inspected, inspect
from rollbus.trainer.ledger import LedgerRecord
from rollbus.trainer.log import LastRecords, NextBatch, Publication, TrainerLog

logger = logging.getLogger(__name__)

LOOK_S = 3600.0
"""Longer than any step."""


@dataclass(slots=True)
class _Ahead:
    following: NextBatch | None = None
    asked: frozenset[Location] = frozenset()
    payload: Mapping[Location, Inspected] = field(default_factory=dict)
    excluded: Collection[str] = ()


class ReadingAhead:
    """A `TrainerLog` with `begin`, for when there is time; `payload` takes the place of its `fetch`."""

    def __init__(self, log: TrainerLog) -> None:
        self._log = log
        self._task: asyncio.Task[None] | None = None
        self._ready = _Ahead()

    def begin(self) -> None:
        """Look for the batch after this one, and then for its payload; harmless to repeat."""
        if self._task is None and self._ready.following is None:
            self._task = asyncio.create_task(self._read())

    @property
    def ready(self) -> NextBatch | None:
        """The next batch, once its payload has been read too; it stays the next one until `next_batch` hands it out."""
        done = self._task is None or (self._task.done() and self._task.exception() is None)
        return self._ready.following if done and self._ready.asked else None

    @property
    def excluded_before(self) -> Collection[str]:
        """The episodes that were excluded when the next batch had been read; the step then has little to read on."""
        return self._ready.excluded

    async def until_ready(self) -> NextBatch | None:
        """Wait for the next batch and its payload; None where they were not read, or are no longer asked for."""
        self.begin()
        if self._task is not None:
            await asyncio.wait([self._task])
        return self.ready

    async def open(self) -> None:
        """Forget what was read: the committed offset decides what comes next."""
        await self.forget()
        await self._log.open()

    async def read_ledger(self) -> Sequence[LedgerRecord]:
        """Ask the log."""
        return await self._log.read_ledger()

    async def next_batch(self, timeout_s: float, *, settle_broken: bool = True) -> NextBatch | None:
        """Return the batch read ahead, or look for it."""
        task, self._task = self._task, None
        if task is not None:
            if self._ready.following is None:
                task.cancel()  # nothing is lost: what comes now, the look below finds
            (outcome,) = await asyncio.gather(task, return_exceptions=True)
            if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
                raise outcome
        following, self._ready.following = self._ready.following, None
        return following or await self._log.next_batch(timeout_s, settle_broken=settle_broken)

    async def at_end(self) -> bool:
        """Ask the log, unless a batch is read ahead: that one is still to come."""
        return self._task is None and self._ready.following is None and await self._log.at_end()

    async def publish(
        self,
        publications: Sequence[Publication],
        *,
        last: LastRecords | None = None,
        next_offset: int | None = None,
    ) -> Sequence[Publication]:
        """Hand on."""
        return await self._log.publish(publications, last=last, next_offset=next_offset)

    async def payload(self, locations: Collection[Location], *, keep: bool = False) -> Mapping[Location, Inspected]:
        """Return what was read ahead, or read it: a batch that is tried again is not the one ahead.

        It is handed out once, and before that as often as someone wants it kept.
        """
        ready = self._ready
        if not ready.asked or ready.asked != frozenset(locations):
            return await self._inspected(locations)
        if keep:
            return ready.payload
        found, ready.payload, ready.asked = ready.payload, {}, frozenset()
        return found

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

    async def forget(self) -> None:
        """Stop reading ahead; what was read comes again from the log after the next `open`."""
        task, self._task, self._ready = self._task, None, _Ahead()
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _read(self) -> None:
        ready = self._ready
        ready.following = await self._log.next_batch(LOOK_S, settle_broken=False)
        if ready.following is None:
            return
        locations = [member.location for _, member in members_of(ready.following.batch)]
        try:
            ready.payload, ready.asked = await self._inspected(locations), frozenset(locations)
            _, ready.excluded = await asyncio.gather(self._log.paused(), self._log.excluded_episodes())
        except UnavailableError as error:
            logger.info("payload of batch %d is not read ahead: %s", ready.following.batch.number, error)

    async def _inspected(self, locations: Collection[Location]) -> Mapping[Location, Inspected]:
        found = await self._log.fetch(locations)
        return {location: inspect(trajectory) for location, trajectory in found.items()}
