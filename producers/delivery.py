"""Events from any thread to the delivery thread, in order: a queue bounded by bytes and by count.

`offer` never blocks: where the queue is full it says no, and the caller drops the whole episode (`purge`). A record
leaves the queue's books only when the sink has it for good, so what is in flight counts against the bounds too. The
thread behind the queue is `courier`'s.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from rollbus.producers.counters import Counters
from rollbus.producers.courier import Courier
from rollbus.producers.sink import EventSink, Outbound

MAX_BATCH_EVENTS = 500
MAX_BATCH_BYTES = 4 * 1024 * 1024
RESERVE_EVENTS = 1000
RESERVE_BYTES = 1024 * 1024
"""Room kept for what must be said when the queue is full: that an episode was dropped."""
CROWDED_SHARE = 0.25
"""From this share of the bytes on, answers that wait unread are no longer queued as they are: see `crowded`."""
FRAME_BYTES = 256
"""What a frame takes in memory besides its key and value."""
CLOSE_SINK_S = 2.0


@dataclass(slots=True, eq=False)
class Item:
    """One event, in the one or more frames that its topic takes; they may be made late, in the delivery thread."""

    episode_id: str
    """Empty where it belongs to no episode that can be dropped with it."""
    make: Callable[[], tuple[Outbound, ...]] | None
    """None once made."""
    size: int
    """Bytes in memory: of the frames, or of what they will be made from."""
    made: tuple[Outbound, ...] = ()
    queued: bool = False
    number: int = 0
    """Counts what was queued, from 1."""
    unmade: bool = False
    """Whether the books have it with what it is made from."""

    @property
    def frames(self) -> tuple[Outbound, ...]:
        """Return the frames, made now if they are not yet."""
        make = self.make
        if make is not None:
            self.made, self.make = make(), None
        return self.made


def size_of(frames: tuple[Outbound, ...]) -> int:
    """Return what frames take in memory."""
    return sum(len(frame.key) + len(frame.value) + FRAME_BYTES for frame in frames)


class Delivery:
    """The queue and its books; the thread starts with the first event."""

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
        self._crowded_bytes = max_bytes * CROWDED_SHARE
        self._of_parent: list[Courier] = []
        """Kept for ever in a child process: freeing a connection there would reach into the parent's loop."""
        self._reset()

    def _reset(self) -> None:
        # Re-entrant: the garbage collector may finish an abandoned stream, which emits, in the middle of `offer`.
        self._lock = threading.RLock()
        self._idle = threading.Condition(self._lock)
        self._queue: deque[Item] = deque()
        self._unmade: deque[Item] = deque()
        self._unmade_bytes = 0
        self.crowded = False
        """Whether so much waits unread that the next answers should be read before they are queued."""
        self._in_flight: list[Item] = []
        self._queued_of: dict[str, dict[Item, None]] = {}
        """By episode, what can still be dropped with it."""
        self._purged = 0
        """Items in the queue that were dropped; they are taken out many at a time."""
        self._events = self._bytes = 0
        self._numbered = 0
        self._courier: Courier | None = None
        self._asleep = False
        """Whether the courier has to be woken."""
        self._flushing = 0
        self._stopping = self._closed = False
        self.healthy: bool | None = None
        """Whether the last attempt at the sink worked; None before the first."""

    # For any thread

    def offer(self, item: Item, *, urgent: bool = False) -> bool:
        """Queue an event, and say whether there was room; `urgent` ones may use the reserve."""
        with self._lock:
            if self._stopping:
                return False
            max_events = self.max_events + (RESERVE_EVENTS if urgent else 0)
            max_bytes = self.max_bytes + (RESERVE_BYTES if urgent else 0)
            if self._events >= max_events or self._bytes + item.size > max_bytes:
                return False
            self._queue.append(item)
            self._numbered += 1
            item.queued, item.number = True, self._numbered
            self._events += 1
            self._bytes += item.size
            if item.make is not None:
                self._unmade.append(item)
                item.unmade = True
                self._unmade_bytes += item.size
                self.crowded = self._unmade_bytes > self._crowded_bytes
            if item.episode_id:
                self._queued_of.setdefault(item.episode_id, {})[item] = None
            courier = self._courier
            if courier is None or courier.ended:
                with contextlib.suppress(RuntimeError):  # no thread can be started now: the next event tries again
                    self._start_courier()
            wake, self._asleep = self._asleep, False
        if wake and courier is not None:
            courier.wake()
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
        """Wait until all that was offered so far is with the sink; False where time ran out."""
        with self._idle:
            self._flushing += 1
            last = self._numbered
            try:
                if self._events and self._courier is not None:
                    self._courier.wake()
                return self._idle.wait_for(lambda: self._oldest_number() > last, timeout=max(0.0, timeout_s))
            finally:
                self._flushing -= 1

    def _oldest_number(self) -> int:
        """Return the number of the oldest item that is neither delivered nor dropped, or of the next one."""
        if not self._events:
            return self._numbered + 1
        while self._queue and not self._queue[0].queued:
            self._queue.popleft()
            self._purged -= 1
        oldest = self._in_flight or self._queue
        return oldest[0].number if oldest else 0  # the rest is on its way to where the sink keeps it

    def close(self, timeout_s: float) -> bool:
        """Flush, then end the thread; returns whether nothing was left.

        What is left is given to the sink to keep, where it can keep something (a spool), else counts as dropped.
        """
        deadline = time.monotonic() + timeout_s
        flushed = self.flush(timeout_s)
        with self._lock:
            already, self._stopping = self._stopping, True
            courier = self._courier
        if courier is not None:
            courier.stop(max(0.0, deadline - time.monotonic()) + 2 * CLOSE_SINK_S, abandon=not flushed)
        with self._lock:
            if not already and self._events:
                self.counters.add("events_dropped.undelivered_at_close", self._events)
            self._closed = True
            for item in self.left():
                self._forget(item)
            self._events = self._bytes = 0  # also of what the thread still tries to keep
        return flushed

    def after_fork(self) -> None:
        """Start over in a child process: the parent delivers what it had queued, and its thread is not here."""
        if self._courier is not None:
            self._courier.after_fork()
            self._of_parent.append(self._courier)
        self._reset()

    # For the courier

    def make_some(self, most: int = MAX_BATCH_EVENTS) -> bool:
        """Make so many of what is queued unmade, in order, and correct the books; False where there was nothing."""
        size = count = 0
        while count < most and size < MAX_BATCH_BYTES:
            with self._lock:
                if not self._unmade:
                    break
                item = self._unmade.popleft()
                if not item.queued:
                    continue
            made = size_of(item.frames)
            with self._lock:
                if item.queued:
                    self._unmade_bytes -= item.size
                    self.crowded = self._unmade_bytes > self._crowded_bytes
                    self._bytes += made - item.size
                    item.size, item.unmade = made, False
            size += made
            count += 1
        return count > 0

    def take(self) -> list[Item]:
        """Return what an attempt left over, else the head of the queue, made; nothing where nothing is queued."""
        if self._in_flight:
            return self._in_flight
        self.make_some()
        with self._lock:
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

    def delivered(self, batch: list[Item], refused: frozenset[int], *, healthy: bool = True) -> None:
        """Take a batch that the sink has off the books; `refused` are positions of its frames, and it is not `healthy`
        where it only keeps them for now.
        """
        taken = rejected = unmade = position = 0
        for item in batch:
            span = range(position, position + len(item.frames))
            position += len(item.frames)
            if not item.frames:
                unmade += 1
            elif refused and not refused.isdisjoint(span):
                rejected += 1
            else:
                taken += 1
        with self._lock:
            if self._in_flight is not batch:
                return  # close() ran out of time and has counted these as dropped
            self.counters.add("events_delivered", taken)
            if unmade:
                self.counters.add("events_dropped.not_made", unmade)
            if rejected:
                self.counters.add("events_dropped.refused_by_sink", rejected)
            self._in_flight = []
            self.healthy = healthy
            for item in batch:
                self._forget(item)

    def kept(self, items: list[Item]) -> bool:
        """Take off the books what the sink keeps for another process; False where `close` has counted it already."""
        with self._lock:
            if self._closed:
                return False
            self.counters.add("events_spooled", len(items))
            for item in items:
                self._forget(item)
            return True

    def left(self) -> list[Item]:
        """Return all that is neither delivered nor dropped, oldest first, and queue it no more."""
        with self._lock:
            left = [*self._in_flight, *(item for item in self._queue if item.queued)]
            self._queue.clear()
            self._unmade.clear()
            self._queued_of.clear()
            self._in_flight = []
            return left

    def not_kept(self, items: list[Item]) -> None:
        """Give back what the sink could not keep either, for `close` to count as dropped."""
        with self._lock:
            self._in_flight = items

    def falls_asleep(self) -> bool:
        """Say whether the courier may wait until it is woken: nothing is queued."""
        with self._lock:
            self._asleep = not self._queue and not self._stopping
            return self._asleep

    def awake(self) -> bool:
        """Wake the courier no more, it looks by itself; True where somebody waits for that."""
        self._asleep = False
        return self._flushing > 0 or self._stopping

    @property
    def stopping(self) -> bool:
        """Whether nothing more is taken."""
        return self._stopping

    def _start_courier(self) -> None:
        courier = Courier(self, self._make_sink, self._report, self._report_interval_s)
        courier.start()
        self._courier = courier

    def _forget(self, item: Item) -> None:
        if item.unmade:
            self._unmade_bytes -= item.size
        item.queued, item.unmade, item.make, item.made = False, False, None, ()
        self._events -= 1
        self._bytes -= item.size
        if self._events == 0 or self._flushing:
            self._idle.notify_all()

    def _unlist(self, item: Item) -> None:
        """Take from an episode's items one that can no longer be dropped with it."""
        if (items := self._queued_of.get(item.episode_id)) is not None:
            items.pop(item, None)
            if not items:
                del self._queued_of[item.episode_id]
