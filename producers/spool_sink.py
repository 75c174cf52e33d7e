"""A sink that writes to disk what the sink behind it does not take, and sends it from there, in order, once it does.

While anything is on disk everything goes through the disk, so the order of records stays. A full disk is passed on
as UnavailableError: then the queue in memory fills and drops whole episodes, as without a spool.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from rollbus.producers.counters import Counters
from rollbus.producers.sink import EventSink, Outbound
from rollbus.producers.spool import Spool
from rollbus.schemas.errors import UnavailableError

PATIENCE_S = 3.0
"""An acknowledgement that takes longer is no longer waited for: the records go to disk, and perhaps to the broker
twice.
"""
RETRY_FIRST_S, RETRY_MOST_S = 0.2, 5.0
SEND_RECORDS = 500


class SpoolSink:
    """Stands before another sink."""

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
        self._draining: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open the spool, and begin to send what an earlier process has left; raises UnavailableError."""
        try:
            self._spool = self._make_spool()
        except OSError as error:
            raise UnavailableError(f"the spool cannot be opened: {error}") from error
        if self._spool:
            self._drain_later()

    async def send(self, records: Sequence[Outbound]) -> frozenset[int]:
        """Return once the records are with the inner sink or on disk."""
        spool = self._spool
        if spool is None:
            raise UnavailableError("the spool sink is not started")
        if not records:
            return frozenset()
        if not spool:
            try:
                return await self._send_inner(records)
            except UnavailableError:
                await self._drop_inner()
        self._put(spool, records)
        self._drain_later()
        return frozenset()

    async def keep(self, records: Sequence[Outbound]) -> None:
        """Write to disk, for the next process, what this one has no time to deliver; raises UnavailableError."""
        if self._spool is None:
            raise UnavailableError("the spool sink is not started")
        if records:
            self._put(self._spool, records)

    def after_fork(self) -> None:
        """Leave the spool to the parent; the child opens one of its own."""
        spool, self._spool = self._spool, None
        if spool is not None:
            spool.after_fork()

    async def close(self) -> None:
        """Stop sending; what is on disk stays there for the next process."""
        if self._draining is not None:
            self._draining.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._draining
            self._draining = None
        await self._drop_inner()
        if self._spool is not None:
            self._spool.close()
            self._spool = None

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
                return await self._inner.send(records)
        except TimeoutError as error:
            raise UnavailableError(f"no acknowledgement within {self._patience_s} s") from error
        except UnavailableError:
            raise
        except Exception as error:  # a sink of the host's may raise anything
            raise UnavailableError(f"the sink failed: {error!r}") from error

    async def _drop_inner(self) -> None:
        inner, self._inner = self._inner, None
        if inner is not None:
            with contextlib.suppress(Exception):
                await inner.close()

    def _drain_later(self) -> None:
        if self._draining is None or self._draining.done():
            self._draining = asyncio.create_task(self._drain())

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
        records = spool.oldest()
        if spool.torn_bytes > torn:
            self._counters.add("spool_torn_bytes", spool.torn_bytes - torn)
        for start in range(0, len(records), SEND_RECORDS):
            part = records[start : start + SEND_RECORDS]
            refused = await self._send_inner(part)
            self._counters.add("records_drained", len(part) - len(refused))
            if refused:
                self._counters.add("records_refused", len(refused))
        spool.discard_oldest()
