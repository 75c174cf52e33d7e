"""Notice a worker that lives but no longer works, and end it: its partitions then go to one that does.

Faust and aiokafka can go quiet after trouble with the broker, and a step can block the event loop. The judging
runs in the loop; a thread of its own ends the process when the loop itself no longer answers. Ending hard is
safe: an open transaction is settled by the next owner.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

logger = logging.getLogger(__name__)

EXIT_STALLED = 70
"""EX_SOFTWARE: a supervisor should start the worker again."""
CHECK_S = 1.0


@dataclass(slots=True)
class Progress:
    """Since when each place is behind without moving. Pure."""

    stalled_s: float
    _since: dict[Hashable, tuple[Hashable, float]] = field(default_factory=dict)
    """Position, and when it was first seen there while behind."""

    def observe(self, places: Iterable[tuple[Hashable, Hashable, bool]], *, now_s: float) -> list[str]:
        """Take (place, position, whether it is behind) of everything; return what has stood too long, in words."""
        seen: dict[Hashable, tuple[Hashable, float]] = {}
        stalled = []
        for place, position, behind in places:
            if not behind:
                continue
            known = self._since.get(place)
            seen[place] = known if known and known[0] == position else (position, now_s)
            stood_s = now_s - seen[place][1]
            if stood_s >= self.stalled_s:
                stalled.append(f"{place} stands at {position} for {stood_s:.0f} s although there is more to do")
        self._since = seen
        return stalled


class Watchdog:
    """Ends the process unless it is told often enough that all is well."""

    def __init__(self, stalled_s: float, *, end: Callable[[str], None] | None = None) -> None:
        self._stalled_s = stalled_s
        self._end = end or end_process
        self._beat = time.monotonic()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._beat = time.monotonic()
        self._thread.start()

    def beat(self) -> None:
        """Say that the event loop runs."""
        self._beat = time.monotonic()

    def stop(self) -> None:
        """Watch no more."""
        self._stopped.set()

    def judge(self, stalled: list[str]) -> None:
        """End the process if anything stands."""
        if stalled:
            self._end("; ".join(stalled))

    def _watch(self) -> None:
        while not self._stopped.wait(CHECK_S):
            silent_s = time.monotonic() - self._beat
            if silent_s >= self._stalled_s:
                self._end(f"the event loop has not answered for {silent_s:.0f} s")
                return


def end_process(reason: str) -> None:
    """Write why, and end at once; a full disk under the log is no reason to stay."""
    with suppress(OSError):
        print(f"rollbus worker: {reason}; ending so that another worker takes over", file=sys.stderr, flush=True)
    os._exit(EXIT_STALLED)
