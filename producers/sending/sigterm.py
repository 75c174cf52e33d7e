"""SIGTERM in a process with a spool: what was emitted goes to disk first, then the process ends as it would have.

Python runs a handler between two steps of the main thread, which may hold the very lock that a flush needs. So the
handler only starts a thread, which flushes and sends the signal again. A second SIGTERM ends the process at once.
"""

import _thread
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

_flush: Callable[[], None] | None = None
_is_asked_to_end = False
"""Whether a SIGTERM has come."""


def flush_on_sigterm(flush: Callable[[], None]) -> None:
    """Flush before SIGTERM ends this process; does nothing where the host handles it, or outside the main thread."""
    global _flush
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        _flush = flush
        signal.signal(signal.SIGTERM, _begin_to_end)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_forget)


def _begin_to_end(number: int, frame: FrameType | None) -> None:
    global _is_asked_to_end
    if _is_asked_to_end:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return
    _is_asked_to_end = True
    # `threading` would take a lock of its own, which the main thread may hold.
    _thread.start_new_thread(_flush_and_end, (number,))


def _flush_and_end(number: int) -> None:
    try:
        if _flush is not None:
            _flush()
    finally:
        os.kill(os.getpid(), number)


def _forget() -> None:
    global _is_asked_to_end
    _is_asked_to_end = False
