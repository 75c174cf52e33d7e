"""What happens to recorders when the process forks or ends.

Recorders are told in the child after a fork, and flushed at exit within a deadline. The flush runs before the
interpreter shuts its executors down, because connecting to a broker needs one.
"""

import atexit
import concurrent.futures.thread  # noqa: F401 - registers its own exit hook on import; ours must run before it
import os
import threading
import time
import weakref
from typing import Protocol

EXIT_DEADLINE_S = 5.0
"""All recorders together may delay the exit by so much."""


class Recording(Protocol):
    """The part of a recorder that is called here."""

    def after_fork(self) -> None:
        """Become a writer of its own."""

    def flush(self, timeout: float) -> bool:
        """Wait until all is out."""

    def close(self, timeout: float) -> bool:
        """Flush and stop."""


_recorders: "weakref.WeakSet[Recording]" = weakref.WeakSet()
_installed = False


def register(recorder: Recording) -> None:
    """Tell this recorder from now on."""
    global _installed
    if not _installed:
        _installed = True
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_after_fork)
        atexit.register(_close_all)
        # Private, but the only hook that runs while threads can still be started.
        early = getattr(threading, "_register_atexit", None)
        if early is not None:
            early(_flush_all)
    _recorders.add(recorder)


def unregister(recorder: Recording) -> None:
    """Stop telling this recorder."""
    _recorders.discard(recorder)


def _after_fork() -> None:
    for recorder in tuple(_recorders):
        recorder.after_fork()


def _flush_all() -> None:
    deadline = time.monotonic() + EXIT_DEADLINE_S
    for recorder in tuple(_recorders):
        recorder.flush(max(0.0, deadline - time.monotonic()))


def _close_all() -> None:
    deadline = time.monotonic() + EXIT_DEADLINE_S
    for recorder in tuple(_recorders):
        recorder.close(max(0.0, deadline - time.monotonic()))
