"""Beats, and this machine's clocks → what time it is by the broker's clock, whatever this machine's says.

What they differ by is learned from a new beat of a process of this machine, or from any beat that comes while we look;
only the newest of them count, since the broker's clock may be set. So may this machine's, and then the clock that only
runs says by how much.
"""

import socket
import time
from collections import deque
from collections.abc import Callable

from rollbus.runtime.health.alarms.processes import MISSED_BEATS
from rollbus.schemas.records.health import Heartbeat

BEATS_FOR_CLOCK = 20
"""Newest beats of other machines from which the clocks' difference is taken: the least late of them."""
SET_MS = 1_000
"""A clock that is kept right by small steps is off by less than this between two looks."""
_RUNNING = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""It goes on while a machine sleeps."""


def read_running_ms() -> int:
    """Return how long this machine runs: no one can set it."""
    return time.clock_gettime_ns(_RUNNING) // 1_000_000


class BrokerClock:
    """The broker's clock as this machine knows it."""

    def __init__(self, clock_ms: Callable[[], int], running_ms: Callable[[], int] = read_running_ms) -> None:
        """Know nothing yet: the two clocks are taken for equal."""
        self._clock_ms, self._running_ms = clock_ms, running_ms
        self._last_ms = (clock_ms(), running_ms())
        self.ahead_ms: int | None = None
        """How far this machine's clock is ahead of the broker's; None until it is known."""
        self._seen_ms: deque[int] = deque(maxlen=BEATS_FOR_CLOCK)
        """How long after the broker took it each of the newest beats was seen, by this machine's clock."""

    def now_ms(self) -> int:
        """Return the broker's time."""
        return self._read() - (self.ahead_ms or 0)

    def learn(self, beat: Heartbeat, taken_ms: int, *, is_new: bool) -> None:
        """Take a beat, when the broker took it, and whether it has come since the last look."""
        here_ms = self._read()
        if beat.host == socket.gethostname():
            if abs(here_ms - beat.beat_at_ms) <= MISSED_BEATS * beat.interval_ms:  # else a clock was set
                self.ahead_ms = beat.beat_at_ms - taken_ms
        elif is_new:
            self._seen_ms.append(here_ms - taken_ms)
            self.ahead_ms = min(self._seen_ms)

    def _read(self) -> int:
        """Return this machine's time; if that was set since the last time, so is what was known by it."""
        here_ms, running_ms = self._clock_ms(), self._running_ms()
        set_by_ms = (here_ms - self._last_ms[0]) - (running_ms - self._last_ms[1])
        self._last_ms = (here_ms, running_ms)
        if abs(set_by_ms) > SET_MS and self.ahead_ms is not None:
            self.ahead_ms += set_by_ms
            self._seen_ms = deque((seen_ms + set_by_ms for seen_ms in self._seen_ms), maxlen=BEATS_FOR_CLOCK)
        return here_ms
