"""How many cores this process is bound to."""

import os


def count_bound_cores() -> int:
    """Return those that the system lets it run on, or all where it does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
