"""This machine's clock, for what is reported and for the ticker: nothing else that decides reads it."""

import time


def wall_clock_ms() -> int:
    """Return the time."""
    return time.time_ns() // 1_000_000
