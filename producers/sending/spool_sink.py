"""A sink that writes to disk what the sink behind it does not take, and sends it from there, in order, once it does.

While anything is on disk everything goes through the disk, so the order of records stays. Where the disk takes no more,
what is on it goes first. As long as that does not work either it is an UnavailableError: the queue in memory fills and
drops whole episodes, as without a spool. Where there is no disk at all, the sink behind it is asked alone.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from rollbus.producers.sending.counters import Counters
from rollbus.producers.sending.sink import EventSink, Outbound
from rollbus.producers.sending.spool import Spool
from rollbus.runtime.tasks import start_task
from rollbus.schemas.errors import UnavailableError

logger = logging.getLogger(__name__)
PATIENCE_S = 3.0
"""An acknowledgement that takes longer is no longer waited for: the records go to disk, and perhaps to the broker
twice.
"""
RETRY_FIRST_S, RETRY_MOST_S = 0.2, 5.0
SEND_RECORDS = 500


class SpoolSink:
    """Wraps another sink."""

    def __init__(
        self,
        make_inner: Callable[[], EventSink],
        make_spool: Callable[[], Spool],
        counters: Counters,
        *,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Open the spool in `start`; ask the inner sink when there is something to send."""
        self._make_inner, self._make_spool, self._counters = make_inner, make_spool, counters
        self._patience_s = patience_s
        self._inner: EventSink | None = None
        self._spool: Spool | None = None
        self._is_started = False
        self.reachable = True
        """Whether the sink behind took the last records that it was given."""
        self._draining: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open the spool, and begin to send what an earlier process has left; go on without one that does not open."""
        self._is_started = True
        try:
            self._spool = self._make_spool()
        except OSError as error:
            if not self._counters.get("spool_unavailable"):
                logger.warning("rollbus: events do not outlive this process, their spool cannot be opened: %s", error)
            self._counters.add("spool_unavailable")
        if self._spool:
            self._drain_later()

    async def send(self, records: Sequence[Outbound]) -> frozenset[int]:
        """Return once the records are with the inner sink or on disk."""
        spool = self._spool
        if not self._is_started:
            raise UnavailableError("the spool sink is not started")
        if not records:
            return frozenset()
        if spool:
            try:
                self._put(spool, records)
            except UnavailableError as full:
                try:
                    await self._drain_now(spool)
                except UnavailableError as error:
                    raise UnavailableError(f"{full}; {error}") from error
            else:
                self._drain_later()
                return frozenset()
        try:
            return await self._send_inner(records)
        except UnavailableError:
            await self._drop_inner()
            if spool is None:
                raise
        self._put(spool, records)
        self._drain_later()
        return frozenset()

    async def keep(self, records: Sequence[Outbound]) -> None:
        """Write to disk, for the next process, what this one has no time to deliver; raises UnavailableError."""
        if self._spool is None:
            raise UnavailableError("there is no spool")
        if records:
            self._put(self._spool, records)

    def after_fork(self) -> None:
        """Leave the spool to the parent; the child opens one of its own."""
        spool, self._spool = self._spool, None
        if spool is not None:
            spool.after_fork()

    async def close(self) -> None:
        """Stop sending; what is on disk stays there for the next process, also where this is cut off."""
        try:
            await self._stop_draining()
            await self._drop_inner()
        finally:
            spool, self._spool = self._spool, None
            self._is_started = False
            if spool is not None:
                spool.close()

    def _put(self, spool: Spool, records: Sequence[Outbound]) -> None:
        spool.append(records)
        self._counters.add("records_spooled", len(records))

    async def _send_inner(self, records: Sequence[Outbound]) -> frozenset[int]:
        try:
            async with asyncio.timeout(self._patience_s):
                if self._inner is None:
                    inner = self._make_inner()
                    await inner.start()
                    self._inner = inner
                refused_places = await self._inner.send(records)
            self.reachable = True
            return refused_places
        except TimeoutError as error:
            self.reachable = False
            raise UnavailableError(f"no acknowledgement within {self._patience_s} s") from error
        except UnavailableError:
            self.reachable = False
            raise
        except Exception as error:  # a sink of the host's may raise anything
            self.reachable = False
            raise UnavailableError(f"the sink failed: {error!r}") from error

    async def _drop_inner(self) -> None:
        inner, self._inner = self._inner, None
        if inner is not None:
            with contextlib.suppress(Exception):
                await inner.close()

    def _drain_later(self) -> None:
        if self._draining is None or self._draining.done():
            self._draining = start_task(self._drain(), "draining the spool", endless=False)

    async def _stop_draining(self) -> None:
        draining, self._draining = self._draining, None
        if draining is not None:
            draining.cancel()
            await asyncio.wait({draining})

    async def _drain_now(self, spool: Spool) -> None:
        """Send all that is on disk; raises UnavailableError."""
        await self._stop_draining()
        try:
            while spool:
                await self._drain_oldest(spool)
        except OSError as error:
            raise UnavailableError(f"the spool cannot be read: {error}") from error

    async def _drain(self) -> None:
        """Send from disk, oldest first, until nothing is left."""
        retry_s = RETRY_FIRST_S
        while self._spool:
            try:
                await self._drain_oldest(self._spool)
                retry_s = RETRY_FIRST_S
            except (UnavailableError, OSError):
                await self._drop_inner()
                await asyncio.sleep(retry_s)
                retry_s = min(retry_s * 2, RETRY_MOST_S)

    async def _drain_oldest(self, spool: Spool) -> None:
        torn = spool.torn_bytes
        records = spool.read_oldest()
        if spool.torn_bytes > torn:
            self._counters.add("spool_torn_bytes", spool.torn_bytes - torn)
        for start in range(0, len(records), SEND_RECORDS):
            part = records[start : start + SEND_RECORDS]
            refused_places = await self._send_inner(part)
            self._counters.add("records_drained", len(part) - len(refused_places))
            if refused_places:
                self._counters.add("records_refused", len(refused_places))
        spool.discard_oldest()
