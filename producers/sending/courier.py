"""The delivery thread: takes batches off the queue and gives them to the sink, in a loop of its own.

A batch that the sink does not take is offered again, at growing intervals. While a batch is with the sink, what waits
behind it is made into records. After a batch the thread looks once more before it sleeps, so that steady traffic never
has to wake it: waking costs the agent's thread more than queueing.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol

from rollbus.producers.sending.books import Books, Item
from rollbus.producers.sending.sink import DELIVERY_THREAD, EventSink

logger = logging.getLogger(__name__)

GATHER_S = 0.05
"""Between two looks at the queue."""
RETRY_FIRST_S, RETRY_MOST_S = 0.1, 5.0
CLOSE_SINK_S = 2.0
KEEP_EVENTS = 500
AHEAD_EVENTS = 20
"""Made at once while the sink is at work, which needs the loop too."""


class Offer(Protocol):
    """Queues an item, where there is room."""

    def __call__(self, item: Item, *, urgent: bool) -> bool:
        """Say whether there was room."""


class Courier:
    """One thread of one queue."""

    def __init__(
        self,
        books: Books,
        offer: "Offer",
        make_sink: Callable[[], EventSink],
        report: Callable[[], Item | None],
        report_interval_s: float,
    ) -> None:
        """Send to the sink that `make_sink` makes, in the thread; every so often also what `report` returns."""
        self._books, self._offer, self._make_sink = books, offer, make_sink
        self._report, self._report_interval_s = report, report_interval_s
        self._next_report = time.monotonic() + report_interval_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._wake: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._sink: EventSink | None = None
        self._ahead: asyncio.TimerHandle | None = None
        """Makes what waits behind a batch that the sink has not taken yet."""
        self._abandon = False
        self._warned = False
        """Whether the log says already that events wait: those that a spool takes do not, until it is full."""
        self.ended = False

    def start(self) -> None:
        """Start the thread; raises RuntimeError where none can be started any more."""
        executor = _Resolver()
        self._thread = threading.Thread(target=self._run, args=(executor,), name=DELIVERY_THREAD, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            executor.shutdown()
            raise

    def wake(self) -> None:
        """Make it look at the queue now."""
        self._call(self._wake.set if self._wake is not None else None)

    def stop(self, timeout_s: float, *, abandon: bool) -> None:
        """Wait until the thread has ended; `abandon` ends it in the middle of what it does."""
        self._abandon = abandon
        if abandon and self._task is not None:
            self._call(self._task.cancel)
        else:
            self.wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def after_fork(self) -> None:
        """Let go, in a child process, of what only the parent's thread may use."""
        forked = getattr(self._sink, "after_fork", None)
        if forked is not None:
            with contextlib.suppress(Exception):
                forked()

    def _call(self, function: Callable[[], object] | None) -> None:
        loop = self._loop
        if loop is None or function is None:
            return
        try:
            loop.call_soon_threadsafe(function)
        except RuntimeError:  # the loop has just ended
            return

    def _run(self, executor: ThreadPoolExecutor) -> None:
        # Not asyncio.run: it starts a thread to shut the executor down, which a process that ends cannot.
        loop = asyncio.new_event_loop()
        loop.set_default_executor(executor)
        try:
            loop.run_until_complete(self._main())
        except asyncio.CancelledError:  # close() ran out of time
            return
        except BaseException:  # the thread is ours alone: what it raises ends here, and Python hides a SystemExit
            logger.exception("rollbus: the delivery thread ended")
        finally:
            self.ended = True
            loop.run_until_complete(_cancel_others())
            loop.close()

    async def _main(self) -> None:
        self._wake = asyncio.Event()
        self._task = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        retry_s = RETRY_FIRST_S
        try:
            while batch := await self._next():
                self._ahead = self._loop.call_later(GATHER_S, self._make_ahead)
                try:
                    if self._sink is None:
                        self._sink = self._make_sink()
                        await self._sink.start()
                    frames = [frame for item in batch for frame in item.frames]
                    refused_places = await self._sink.send(frames)
                    self._books.mark_delivered(batch, refused_places, healthy=getattr(self._sink, "reachable", True))
                    retry_s, self._warned = RETRY_FIRST_S, False
                except Exception as error:  # a sink of the host's may raise anything; it is asked again
                    self._unavailable(error)
                    await self._close()
                    await asyncio.sleep(retry_s)
                    retry_s = min(retry_s * 2, RETRY_MOST_S)
                self._ahead.cancel()
        finally:
            if self._abandon:
                await self._keep()
            await self._close()

    async def _next(self) -> list[Item]:
        """Return what to send next, as soon as there is something; nothing where the thread should end."""
        looked = False
        while True:
            self._report_if_due()
            if batch := self._books.take_batch():
                return [] if self._abandon else batch
            if self._books.stopping:
                return []
            if looked and not self._books.may_sleep():
                continue
            await self._wait(max(0.01, self._next_report - time.monotonic()) if looked else GATHER_S)
            if looked and not self._books.mark_awake():
                await self._wait(GATHER_S)
            looked = not looked

    async def _wait(self, seconds: float) -> None:
        """Wait until woken, so long at most."""
        assert self._wake is not None
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), seconds)
        self._wake.clear()

    def _make_ahead(self) -> None:
        assert self._loop is not None
        has_made_events = self._books.make_some(AHEAD_EVENTS)
        self._ahead = self._loop.call_later(0.0 if has_made_events else GATHER_S, self._make_ahead)

    async def _keep(self) -> None:
        """Let the sink keep what there was no time to deliver."""
        keep = getattr(self._sink, "keep", None)
        if keep is None:
            return
        waiting = self._books.take_all()
        for start in range(0, len(waiting), KEEP_EVENTS):
            items = waiting[start : start + KEEP_EVENTS]
            try:
                await keep([frame for item in items for frame in item.frames])
            except Exception as error:  # a full disk, or a sink of the host's
                self._unavailable(error)
                self._books.give_back(waiting[start:])
                return
            if not self._books.mark_kept(items):
                return

    def _report_if_due(self) -> None:
        if time.monotonic() >= self._next_report:
            self._next_report = time.monotonic() + self._report_interval_s
            if (item := self._report()) is not None and self._offer(item, urgent=True):
                self._books.counters.add("events_emitted")

    async def _close(self) -> None:
        sink, self._sink = self._sink, None
        if sink is None:
            return
        try:
            await asyncio.wait_for(sink.close(), CLOSE_SINK_S)
        except Exception as error:
            logger.debug("rollbus: closing the sink failed: %r", error)

    def _unavailable(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("rollbus: events wait in memory, their sink is unavailable: %r", error)
        self._books.healthy = False
        self._books.counters.add("delivery_retries")


class _Resolver(ThreadPoolExecutor):
    """Where the loop resolves host names: a thread that runs already when the interpreter ends and a last flush goes
    out, as none can be started then, and that no end of a process waits for, as a name server may never answer.
    """

    def __init__(self) -> None:
        """Start the thread; raises RuntimeError where none can be started any more."""
        super().__init__(max_workers=1)
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        threading.Thread(target=self._run, name="rollbus-resolver", daemon=True).start()

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Call it in the thread."""
        future = Future[Any]()
        self._calls.put((future, partial(function, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the thread end behind what it has begun; never waits."""
        self._calls.put(None)

    def _run(self) -> None:
        while call := self._calls.get():
            future, function = call
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:
                    future.set_exception(error)
            del call, future, function  # an address, or an error with its frames, is not kept until the next call


async def _cancel_others() -> None:
    """Cancel the tasks that a sink may still have running."""
    other_tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in other_tasks:
        task.cancel()
    await asyncio.gather(*other_tasks, return_exceptions=True)
