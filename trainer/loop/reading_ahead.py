"""Read the next batch and inspect its payload while the backend works.

Nothing is written or committed ahead: after a crash a batch read here is still the next one. A record that is not a
batch is left to the loop. The step itself asks which episodes are excluded.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from rollbus.schemas.errors import UnavailableError
from rollbus.schemas.records.trajectories import Location
from rollbus.trainer.ledger.log import ReceivedBatch, TrainerLog
from rollbus.trainer.loop.accounting import distinct_members
from rollbus.trainer.loop.inspection import Inspected, inspect

logger = logging.getLogger(__name__)

LOOK_S = 3600.0
"""Longer than any step."""


@dataclass(slots=True)
class _Ahead:
    received: ReceivedBatch | None = None
    locations: frozenset[Location] = frozenset()
    payload: Mapping[Location, Inspected] = field(default_factory=dict)
    excluded: Collection[str] = ()


class ReadingAhead:
    """The batches of a log and their payload; `begin` is for when there is time to read ahead."""

    def __init__(self, log: TrainerLog) -> None:
        self._log = log
        self._task: asyncio.Task[None] | None = None
        self._ready = _Ahead()

    def begin(self) -> None:
        """Look for the batch after this one, and then for its payload; harmless to repeat."""
        if self._task is None and self._ready.received is None:
            self._task = asyncio.create_task(self._read())

    @property
    def ready(self) -> ReceivedBatch | None:
        """The next batch, once its payload has been read too; `next_batch` hands it out."""
        has_read = self._task is None or (self._task.done() and self._task.exception() is None)
        return self._ready.received if has_read and self._ready.locations else None

    @property
    def excluded_before(self) -> Collection[str]:
        """The episodes that were excluded when the next batch was read; the step then has little left to read."""
        return self._ready.excluded

    async def until_ready(self) -> ReceivedBatch | None:
        """Wait for the next batch and its payload; None if they were not read or are no longer wanted."""
        self.begin()
        if self._task is not None:
            await asyncio.wait([self._task])
        return self.ready

    async def open(self) -> None:
        """Forget what was read: the committed offset decides what comes next."""
        await self.forget()
        await self._log.open()

    async def next_batch(self, timeout_s: float, *, skip_unreadable: bool = True) -> ReceivedBatch | None:
        """Return the batch read ahead, or look for it."""
        task, self._task = self._task, None
        if task is not None:
            if self._ready.received is None:
                task.cancel()  # nothing is lost: what comes now, the look below finds
            (outcome,) = await asyncio.gather(task, return_exceptions=True)
            if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
                raise outcome
        received, self._ready.received = self._ready.received, None
        return received or await self._log.next_batch(timeout_s, skip_unreadable=skip_unreadable)

    async def at_end(self) -> bool:
        """Ask the log, unless a batch is read ahead: that one is still to come."""
        return self._task is None and self._ready.received is None and await self._log.at_end()

    async def payload(self, locations: Collection[Location], *, keep: bool = False) -> Mapping[Location, Inspected]:
        """Return what was read ahead, or read it: a batch that is tried again is not the one ahead.

        It is handed out once; with `keep` it stays.
        """
        ready = self._ready
        if not ready.locations or ready.locations != frozenset(locations):
            return await self._read_inspected(locations)
        if keep:
            return ready.payload
        inspected, ready.payload, ready.locations = ready.payload, {}, frozenset()
        return inspected

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
        ready.received = await self._log.next_batch(LOOK_S, skip_unreadable=False)
        if ready.received is None:
            return
        locations = [member.location for _, member in distinct_members(ready.received.batch)]
        try:
            ready.payload, ready.locations = await self._read_inspected(locations), frozenset(locations)
            _, ready.excluded = await asyncio.gather(self._log.paused(), self._log.excluded_episodes())
        except UnavailableError as error:
            logger.info("payload of batch %d is not read ahead: %s", ready.received.batch.number, error)

    async def _read_inspected(self, locations: Collection[Location]) -> Mapping[Location, Inspected]:
        trajectories = await self._log.fetch(locations)
        return {location: inspect(trajectory) for location, trajectory in trajectories.items()}
