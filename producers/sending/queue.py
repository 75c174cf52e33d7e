"""Events from any thread to the delivery thread, in order.

`offer` never blocks: where the queue is full it says no, and the caller drops the whole episode (`purge`). The counting
is in `books`; the thread behind the queue is in `courier`.
"""

import contextlib
import logging
import time
from collections.abc import Callable

from rollbus.producers.sending.books import Books, Item
from rollbus.producers.sending.counters import Counters
from rollbus.producers.sending.courier import CLOSE_SINK_S, Courier
from rollbus.producers.sending.sink import EventSink

logger = logging.getLogger(__name__)


class Delivery(Books):
    """The queue; its thread starts with the first event."""

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
        super().__init__(counters, max_events=max_events, max_bytes=max_bytes)
        self._make_sink, self._report, self._report_interval_s = make_sink, report, report_interval_s
        self._courier: Courier | None = None
        self._of_parent: list[Courier] = []
        """Kept for ever in a child process: freeing a connection there would reach into the parent's loop."""

    def offer(self, item: Item, *, urgent: bool = False) -> bool:
        """Queue an event, and say whether there was room; `urgent` ones may use the reserve."""
        with self._lock:
            if not self._add(item, urgent=urgent):
                return False
            courier = self._courier
            if courier is None or courier.ended:
                with contextlib.suppress(RuntimeError):  # no thread can be started now: the next event tries again
                    self._start_courier()
            wake, self._asleep = self._asleep, False
        if wake and courier is not None:
            courier.wake()
        return True

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

    def close(self, timeout_s: float) -> bool:
        """Flush, then end the thread; returns whether all was delivered.

        The rest is given to the sink to keep, where it can keep something (a spool), else counts as dropped.
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
                logger.warning(
                    "rollbus: %d records (events, and the recorder's reports on them) were not delivered before the "
                    "end, and are lost",
                    self._events,
                )
            self._closed = True
            for item in self.take_all():
                self._forget(item)
            self._events = self._bytes = 0  # also of what the thread still tries to keep
        return flushed

    def after_fork(self) -> None:
        """Start over in a child process: the parent delivers what it had queued, and its thread is not here."""
        if self._courier is not None:
            self._courier.after_fork()
            self._of_parent.append(self._courier)
            self._courier = None
        self._reset()

    def _start_courier(self) -> None:
        courier = Courier(self, self.offer, self._make_sink, self._report, self._report_interval_s)
        courier.start()
        self._courier = courier
