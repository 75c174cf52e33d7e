"""1 where the last completion matches the option `pattern`, else 0; `full` asks for the whole text.

The text is cut to its last 20,000 characters. A pattern that backtracks for more than `within_s` seconds (1) fails its
trajectory: Python's `re` lets no other thread run while it searches, but in the main thread it reacts to signals.
"""

import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from rollbus.schemas.records.trajectories import Trajectory
from rollbus.streams.rewards.contract import RewardContext, last_text

MAX_CHARACTERS = 20_000
WITHIN_S = 1.0


def regex(trajectory: Trajectory, context: RewardContext) -> float | None:
    """Search the pattern, or match it fully."""
    pattern = _compiled(str(context.options["pattern"]))
    text = last_text(trajectory)[-MAX_CHARACTERS:]
    with _interrupted_after(float(context.options.get("within_s") or WITHIN_S)):
        match = pattern.fullmatch(text) if context.options.get("full") else pattern.search(text)
    return float(match is not None)


@contextmanager
def _interrupted_after(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the main thread after so long; other threads cannot be interrupted."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def interrupt(number: int, frame: Any) -> None:
        raise TimeoutError(f"the pattern ran for more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.DOTALL)
