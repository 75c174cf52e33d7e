"""The books of the delivery queue: what is queued, in flight, delivered and dropped, bounded by bytes and by count.

An item leaves the books only when the sink has it for good, so what is in flight counts against the bounds too. Items
may be made late: the queue's thread makes records of them, and the books then have their true size.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from rollbus.producers.sending.counters import Counters
from rollbus.producers.sending.sink import Outbound

MAX_BATCH_EVENTS = 500
MAX_BATCH_BYTES = 4 * 1024 * 1024
RESERVE_EVENTS = 1000
RESERVE_BYTES = 1024 * 1024
"""Room kept for the record that says, when the queue is full, that an episode was dropped."""
CROWDED_SHARE = 0.25
"""From this share of the bytes on, answers that wait unread are no longer queued as they are: see `crowded`."""
FRAME_BYTES = 256
"""What a frame takes in memory in addition to its key and value."""


@dataclass(slots=True, eq=False)
class Item:
    """One event, in the one or more frames that its topic takes; they may be made late, in the delivery thread."""

    episode_id: str
    """Empty where it belongs to no episode that can be dropped with it."""
    make: Callable[[], tuple[Outbound, ...]] | None
    """None once made."""
    size: int
    """Bytes in memory: of the frames, or of what they will be made from."""
    made_frames: tuple[Outbound, ...] = ()
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
            self.made_frames, self.make = make(), None
        return self.made_frames


def size_of(frames: tuple[Outbound, ...]) -> int:
    """Return what frames take in memory."""
    return sum(len(frame.key) + len(frame.value) + FRAME_BYTES for frame in frames)


class Books:
    """Counts what a queue holds; every method may be called from any thread."""

    def __init__(self, counters: Counters, *, max_events: int, max_bytes: int) -> None:
        """Hold nothing yet."""
        self.counters = counters
        self.max_events, self.max_bytes = max_events, max_bytes
        self._crowded_bytes = max_bytes * CROWDED_SHARE
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
        self._asleep = False
        """Whether the courier has to be woken."""
        self._flushing = 0
        self._stopping = self._closed = False
        self.healthy: bool | None = None
        """Whether the last attempt at the sink worked; None before the first."""

    def _add(self, item: Item, *, urgent: bool) -> bool:
        """Enter an item, where there is room; under the lock."""
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
            made_frames = size_of(item.frames)
            with self._lock:
                if item.queued:
                    self._unmade_bytes -= item.size
                    self.crowded = self._unmade_bytes > self._crowded_bytes
                    self._bytes += made_frames - item.size
                    item.size, item.unmade = made_frames, False
            size += made_frames
            count += 1
        return count > 0

    def take_batch(self) -> list[Item]:
        """Return what the last attempt did not deliver, else the head of the queue, made; it may be empty."""
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

    def mark_delivered(self, batch: list[Item], refused: frozenset[int], *, healthy: bool = True) -> None:
        """Take a batch that the sink has off the books; `refused` are positions of its frames, and it is not `healthy`
        where it only keeps them for now.
        """
        delivered_events = rejected = unmade = position = 0
        for item in batch:
            span = range(position, position + len(item.frames))
            position += len(item.frames)
            if not item.frames:
                unmade += 1
            elif refused and not refused.isdisjoint(span):
                rejected += 1
            else:
                delivered_events += 1
        with self._lock:
            if self._in_flight is not batch:
                return  # close() ran out of time and has counted these as dropped
            self.counters.add("events_delivered", delivered_events)
            if unmade:
                self.counters.add("events_dropped.not_made", unmade)
            if rejected:
                self.counters.add("events_dropped.refused_by_sink", rejected)
            self._in_flight = []
            self.healthy = healthy
            for item in batch:
                self._forget(item)

    def mark_kept(self, items: list[Item]) -> bool:
        """Take off the books what the sink keeps for another process; False where `close` has counted it already."""
        with self._lock:
            if self._closed:
                return False
            self.counters.add("events_spooled", len(items))
            for item in items:
                self._forget(item)
            return True

    def take_all(self) -> list[Item]:
        """Return all that is neither delivered nor dropped, oldest first, and queue it no more."""
        with self._lock:
            items = [*self._in_flight, *(item for item in self._queue if item.queued)]
            self._queue.clear()
            self._unmade.clear()
            self._queued_of.clear()
            self._in_flight = []
            return items

    def give_back(self, items: list[Item]) -> None:
        """Give back what the sink could not keep either, for `close` to count as dropped."""
        with self._lock:
            self._in_flight = items

    def may_sleep(self) -> bool:
        """Say whether the courier may wait until it is woken: nothing is queued."""
        with self._lock:
            self._asleep = not self._queue and not self._stopping
            return self._asleep

    def mark_awake(self) -> bool:
        """Note that the courier looks by itself and need not be woken; True where a flush or a close waits for that."""
        self._asleep = False
        return self._flushing > 0 or self._stopping

    @property
    def stopping(self) -> bool:
        """Whether nothing more is taken."""
        return self._stopping

    def _oldest_number(self) -> int:
        """Return the number of the oldest item that is neither delivered nor dropped, or of the next one."""
        if not self._events:
            return self._numbered + 1
        while self._queue and not self._queue[0].queued:
            self._queue.popleft()
            self._purged -= 1
        oldest = self._in_flight or self._queue
        return oldest[0].number if oldest else 0  # the rest is on its way to where the sink keeps it

    def _forget(self, item: Item) -> None:
        if item.unmade:
            self._unmade_bytes -= item.size
        item.queued, item.unmade, item.make, item.made_frames = False, False, None, ()
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
