"""Events from any thread to a sink, in order: a queue bounded by bytes and by count, and one thread with its own loop.

`offer` never blocks: where the queue is full it says no, and the caller drops the whole episode (`purge`). A record
leaves the queue's books only when the sink has it for good, so what is in flight counts against the bounds too.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from rollbus.producers.counters import Counters
from rollbus.producers.sink import EventSink, Outbound

logger = logging.getLogger(__name__)

MAX_BATCH_EVENTS = 500
MAX_BATCH_BYTES = 4 * 1024 * 1024
RESERVE_EVENTS = 1000
RESERVE_BYTES = 1024 * 1024
"""Room kept for what must be said when the queue is full: that an episode was dropped."""
GATHER_S = 0.01
"""After the first event, wait so long for company: it spares the host's thread a switch per event."""
RETRY_FIRST_S, RETRY_MOST_S = 0.1, 5.0
CLOSE_SINK_S = 2.0


@dataclass(slots=True, eq=False)
class Item:
    """One event, in the one or more frames that its topic takes; they may be made late, in the delivery thread."""

    episode_id: str
    """Empty where it belongs to no episode that can be dropped with it."""
    make: Callable[[], tuple[Outbound, ...]] | None
    """None once made."""
    size: int
    """Bytes of keys and values; until they are made, as expected."""
    made: tuple[Outbound, ...] = ()
    queued: bool = False

    @property
    def frames(self) -> tuple[Outbound, ...]:
        """Return the frames, made now if they are not yet."""
        make = self.make
        if make is not None:
            self.made, self.make = make(), None
        return self.made


class Delivery:
    """The queue and its thread; the thread starts with the first event."""

    def __init__(
        self,
        make_sink: Callable[[], EventSink],
        counters: Counters,
        *,
        max_events: int,
        max_bytes: int,
        report: Callable[[], Item | None] = lambda: None,
        report_interval_s: float = 30.0,
    ) -> None:
        """Deliver to the sink that `make_sink` makes, in the thread; every so often also what `report` returns."""
        self._make_sink, self._report, self._report_interval_s = make_sink, report, report_interval_s
        self.counters = counters
        self.max_events, self.max_bytes = max_events, max_bytes
        self._reset()

    def _reset(self) -> None:
        # Re-entrant: the garbage collector may finish an abandoned stream, which emits, in the middle of `offer`.
        self._lock = threading.RLock()
        self._idle = threading.Condition(self._lock)
        self._queue: deque[Item] = deque()
        self._unmade: deque[Item] = deque()
        self._in_flight: list[Item] = []
        self._queued_of: dict[str, dict[Item, None]] = {}
        """By episode, what can still be dropped with it."""
        self._purged = 0
        """Items in the queue that were dropped; they are taken out many at a time."""
        self._events = self._bytes = 0
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._wake: asyncio.Event | None = None
        self._asleep = False
        self._waiting = False
        """For the sink, or to ask it again; what is offered meanwhile is made at once."""
        self._stopping = False
        self._abandon = self._closed = False
        self._next_report = time.monotonic() + self._report_interval_s
        self.healthy: bool | None = None
        """Whether the last attempt at the sink worked; None before the first."""

    def offer(self, item: Item, *, urgent: bool = False) -> bool:
        """Queue an event, and say whether there was room; `urgent` ones may use the reserve."""
        with self._lock:
            if self._stopping:
                return False
            max_events = self.max_events + (RESERVE_EVENTS if urgent else 0)
            max_bytes = self.max_bytes + (RESERVE_BYTES if urgent else 0)
            if self._events + 1 > max_events or self._bytes + item.size > max_bytes:
                return False
            self._queue.append(item)
            item.queued = True
            if item.make is not None:
                self._unmade.append(item)
            self._events += 1
            self._bytes += item.size
            if item.episode_id:
                self._queued_of.setdefault(item.episode_id, {})[item] = None
            with contextlib.suppress(RuntimeError):  # no thread can be started now: the next event tries again
                self._ensure_thread()
            wake = self._asleep
            self._asleep = False
            make = self._waiting and len(self._unmade) == 1
        if wake and self._wake is not None:
            self._call(self._wake.set)
        elif make:  # what is kept is large until it is made
            self._call(self._make_waiting)
        return True

    def purge(self, episode_id: str) -> int:
        """Take an episode's events out of the queue, and return how many; those in flight stay."""
        with self._lock:
            items = self._queued_of.pop(episode_id, {})
            for item in items:
                self._forget(item)
            self._purged += len(items)
            if self._purged > len(self._queue) // 2:
                self._queue = deque(item for item in self._queue if item.queued)
                self._unmade = deque(item for item in self._unmade if item.queued)
                self._purged = 0
            return len(items)

    @property
    def pending_events(self) -> int:
        """Events queued or in flight."""
        return self._events

    @property
    def pending_bytes(self) -> int:
        """Their bytes."""
        return self._bytes

    def flush(self, timeout_s: float) -> bool:
        """Wait until all that was offered is with the sink; False where time ran out."""
        with self._idle:
            return self._idle.wait_for(lambda: self._events == 0, timeout=max(0.0, timeout_s))

    def close(self, timeout_s: float) -> bool:
        """Flush, then end the thread; returns whether nothing was left.

        What is left is given to the sink to keep, where it can keep something (a spool), else counts as dropped.
        """
        deadline = time.monotonic() + timeout_s
        flushed = self.flush(timeout_s)
        with self._lock:
            already, self._stopping = self._stopping, True
            thread, self._abandon = self._thread, not flushed
            if self._abandon and self._task is not None:
                self._call(self._task.cancel)
            elif self._wake is not None:
                self._call(self._wake.set)
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(0.0, deadline - time.monotonic()) + 2 * CLOSE_SINK_S)
        with self._lock:
            if not already and self._events:
                self.counters.add("events_dropped.undelivered_at_close", self._events)
            self._closed = True
            for item in self._left():
                self._forget(item)
            self._events = self._bytes = 0  # also of what the thread still tries to keep
        return flushed

    def after_fork(self) -> None:
        """Start over in a child process: the parent delivers what it had queued, and its thread is not here."""
        self._reset()

    def _make_waiting(self) -> None:
        """Make what is queued unmade, in order, and correct the books."""
        while True:
            with self._lock:
                if not self._unmade:
                    return
                item = self._unmade.popleft()
                if not item.queued:
                    continue
            size = sum(len(frame.key) + len(frame.value) for frame in item.frames)
            with self._lock:
                if item.queued:
                    self._bytes += size - item.size
                    item.size = size

    def _forget(self, item: Item) -> None:
        item.queued, item.make, item.made = False, None, ()
        self._events -= 1
        self._bytes -= item.size
        if self._events == 0:
            self._idle.notify_all()

    def _unlist(self, item: Item) -> None:
        """Take from an episode's items one that can no longer be dropped with it."""
        if (items := self._queued_of.get(item.episode_id)) is not None:
            items.pop(item, None)
            if not items:
                del self._queued_of[item.episode_id]

    def _left(self) -> list[Item]:
        """Return all that is neither delivered nor dropped, oldest first, and queue it no more."""
        left = [*self._in_flight, *(item for item in self._queue if item.queued)]
        self._queue.clear()
        self._unmade.clear()
        self._queued_of.clear()
        self._in_flight = []
        return left

    def _ensure_thread(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            # Host names are resolved in this executor. Its one thread must be running already: while the interpreter
            # ends, and a last flush goes out, no thread can be started any more.
            executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rollbus-resolver")
            executor.submit(int)
            self._thread = threading.Thread(target=self._run, args=(executor,), name="rollbus-delivery", daemon=True)
            self._thread.start()

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
        except Exception:  # the thread is ours alone: what it raises ends here
            logger.exception("rollbus: the delivery thread ended")
        finally:
            loop.run_until_complete(_cancel_others())
            loop.close()

    async def _main(self) -> None:
        with self._lock:
            self._wake = asyncio.Event()
            self._task = asyncio.current_task()
            self._loop = asyncio.get_running_loop()
        sink: EventSink | None = None
        retry_s = RETRY_FIRST_S
        try:
            while batch := await self._next():
                try:
                    if sink is None:
                        sink = self._make_sink()
                        await sink.start()
                    await self._deliver(sink, batch)
                    retry_s = RETRY_FIRST_S
                except Exception as error:  # a sink of the host's may raise anything; it is asked again
                    self._unavailable(error)
                    await self._close(sink)
                    sink = None
                    await asyncio.sleep(retry_s)
                    retry_s = min(retry_s * 2, RETRY_MOST_S)
        finally:
            if self._abandon and sink is not None:
                await self._keep(sink)
            await self._close(sink)

    async def _keep(self, sink: EventSink) -> None:
        """Let the sink keep what there was no time to deliver."""
        keep = getattr(sink, "keep", None)
        if keep is None:
            return
        with self._lock:
            left = self._left()
        for start in range(0, len(left), MAX_BATCH_EVENTS):
            items = left[start : start + MAX_BATCH_EVENTS]
            try:
                await keep([frame for item in items for frame in item.frames])
            except Exception as error:  # a full disk, or a sink of the host's
                self._unavailable(error)
                with self._lock:
                    self._in_flight = left[start:]  # for close() to count as dropped
                return
            with self._lock:
                if self._closed:
                    return  # it has counted these already
                self.counters.add("events_spooled", len(items))
                for item in items:
                    self._forget(item)

    async def _next(self) -> list[Item]:
        """Return what to send next, as soon as there is something; nothing where the thread should end."""
        while True:
            self._report_if_due()
            if batch := self._take():
                return [] if self._abandon else batch
            with self._lock:
                if self._queue:
                    continue
                if self._stopping:
                    return []
                assert self._wake is not None
                self._wake.clear()
                self._asleep, self._waiting = True, False
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), max(0.01, self._next_report - time.monotonic()))
            self._asleep = False
            if not self._stopping:
                await asyncio.sleep(GATHER_S)

    async def _deliver(self, sink: EventSink, batch: list[Item]) -> None:
        frames = [frame for item in batch for frame in item.frames]
        refused = await sink.send(frames)
        delivered = rejected = unmade = position = 0
        for item in batch:
            span = range(position, position + len(item.frames))
            position += len(item.frames)
            if not item.frames:
                unmade += 1
            elif refused and not refused.isdisjoint(span):
                rejected += 1
            else:
                delivered += 1
        with self._lock:
            if self._in_flight is not batch:
                return  # close() ran out of time and has counted these as dropped
            self.counters.add("events_delivered", delivered)
            if unmade:
                self.counters.add("events_dropped.not_made", unmade)
            if rejected:
                self.counters.add("events_dropped.refused_by_sink", rejected)
            self._in_flight = []
            self.healthy = True
            for item in batch:
                self._forget(item)

    def _take(self) -> list[Item]:
        """Return what an attempt left over, else the head of the queue."""
        with self._lock:
            self._waiting = True
        self._make_waiting()
        with self._lock:
            if self._in_flight:
                return self._in_flight
            size = 0
            while self._queue and len(self._in_flight) < MAX_BATCH_EVENTS and size < MAX_BATCH_BYTES:
                item = self._queue.popleft()
                if not item.queued:
                    self._purged -= 1
                    continue
                self._unlist(item)
                size += item.size
                self._in_flight.append(item)
            return self._in_flight

    def _report_if_due(self) -> None:
        if time.monotonic() >= self._next_report:
            self._next_report = time.monotonic() + self._report_interval_s
            if (item := self._report()) is not None and self.offer(item, urgent=True):
                self.counters.add("events_emitted")

    async def _close(self, sink: EventSink | None) -> None:
        if sink is None:
            return
        try:
            await asyncio.wait_for(sink.close(), CLOSE_SINK_S)
        except Exception as error:
            logger.debug("rollbus: closing the sink failed: %r", error)

    def _unavailable(self, error: Exception) -> None:
        if self.healthy is not False:
            logger.warning("rollbus: events wait in memory, their sink is unavailable: %r", error)
        self.healthy = False
        self.counters.add("delivery_retries")


async def _cancel_others() -> None:
    """End what a sink may have left running."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
