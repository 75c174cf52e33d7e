"""Wait for what another thread or process does."""

import time
from collections.abc import Callable
from typing import TypeVar

FoundT = TypeVar("FoundT")


def wait_until(find: Callable[[], FoundT], otherwise: str, *, within_s: float = 120.0) -> FoundT:
    """Return what is found as soon as it is true; fail with `otherwise` where it stays false."""
    deadline = time.monotonic() + within_s
    while not (found := find()):
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)
    return found
