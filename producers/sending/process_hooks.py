"""What happens to recorders when the process forks or ends.

Recorders are called in the child after a fork, and flushed at exit within a deadline. The flush runs before the
interpreter shuts its executors down, because connecting to a broker needs one. A child of `multiprocessing` never comes
to the interpreter's exit: `multiprocessing`'s own finalizers close its parts of episodes, before that flush.
"""

import atexit
import concurrent.futures.thread  # noqa: F401 - registers its own exit hook on import; ours must run before it
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Protocol

from rollbus.producers.sending.sigterm import flush_on_sigterm

EXIT_DEADLINE_S = 5.0
"""All recorders together may delay the exit by so much."""


class HookedRecorder(Protocol):
    """The part of a recorder that is called here."""

    def after_fork(self) -> None:
        """Become a writer of its own."""

    def leave(self) -> None:
        """Close this process's part of the episodes that another process ends."""

    def flush(self, timeout: float) -> bool:
        """Wait until all is out."""

    def close(self, timeout: float) -> bool:
        """Flush and stop."""


_recorders: "weakref.WeakSet[HookedRecorder]" = weakref.WeakSet()
_installed = False
_spent_s = 0.0
"""How long the exit was held back so far."""


def register(recorder: HookedRecorder) -> None:
    """Call this recorder from now on."""
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


def flush_all_on_sigterm() -> None:
    """Flush all recorders before SIGTERM ends this process, where it would end it at once."""
    flush_on_sigterm(_flush_all)


def unregister(recorder: HookedRecorder) -> None:
    """Stop calling this recorder."""
    _recorders.discard(recorder)


def _after_fork() -> None:
    for recorder in tuple(_recorders):
        recorder.after_fork()
    multiprocessing = sys.modules.get("multiprocessing.util")
    if multiprocessing is not None:  # it forgets all finalizers in the child, and calls this when it has
        multiprocessing.register_after_fork(_leave_all, _leave_at_end)


def _leave_at_end(leave_all: Callable[[], None]) -> None:
    sys.modules["multiprocessing.util"].Finalize(None, leave_all, exitpriority=-1)


def _leave_all() -> None:
    for recorder in tuple(_recorders):
        recorder.leave()


def _flush_all() -> None:
    _for_all(lambda recorder, left_s: recorder.flush(left_s))


def _close_all() -> None:
    _for_all(lambda recorder, left_s: recorder.close(left_s))


def _for_all(end: Callable[[HookedRecorder, float], object]) -> None:
    global _spent_s
    for recorder in tuple(_recorders):
        began = time.monotonic()
        end(recorder, max(0.0, EXIT_DEADLINE_S - _spent_s))
        _spent_s += time.monotonic() - began
