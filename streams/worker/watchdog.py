"""End a worker that runs but makes no progress: its partitions then go to another worker.

Faust and aiokafka can go quiet after trouble with the broker, and a step can block the event loop. The check runs in
the loop; a separate thread ends the process when the loop itself no longer answers. Ending at once is safe: the next
owner settles an open transaction.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from rollbus.runtime.tasks import start_thread

logger = logging.getLogger(__name__)

EXIT_STALLED = 70
"""EX_SOFTWARE: a supervisor should start the worker again."""
CHECK_S = 1.0


class Watchdog:
    """Ends the process unless the event loop reports often enough that it runs."""

    def __init__(self, stalled_s: float, *, end: Callable[[str], None] | None = None) -> None:
        self._stalled_s = stalled_s
        self._end = end or end_process
        self._beat = time.monotonic()
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start to watch."""
        self._beat = time.monotonic()
        start_thread(self._watch, "watchdog", is_over=self._stopped.is_set)

    def beat(self) -> None:
        """Report that the event loop runs."""
        self._beat = time.monotonic()

    def stop(self) -> None:
        """Stop watching."""
        self._stopped.set()

    def judge(self, stalled: list[str]) -> None:
        """End the process if any part is stalled."""
        if stalled:
            self._end("; ".join(stalled))

    def _watch(self) -> None:
        while not self._stopped.wait(CHECK_S):
            silent_s = time.monotonic() - self._beat
            if silent_s >= self._stalled_s:
                self._end(f"the event loop has not answered for {silent_s:.0f} s")
                return


def end_process(reason: str) -> None:
    """Print the reason in the form of the log's lines and end at once, even if it cannot be printed.

    The logger itself is not asked: the event loop that does not answer may hold its lock.
    """
    with suppress(OSError):
        line = "%s; ending so that another worker takes over"
        record = logging.LogRecord(logger.name, logging.CRITICAL, __file__, 0, line, (reason,), None)
        format_line = next((handler.format for handler in logging.getLogger().handlers), logging.LogRecord.getMessage)
        print(format_line(record), file=sys.stderr, flush=True)
    os._exit(EXIT_STALLED)
