"""What a producer did and lost, as numbers that add up.

events_emitted = events_delivered + events_spooled + events_queued + every events_dropped.<reason>

`events_spooled` are those that a process left on disk when it ended; what went to disk before counts as delivered.
"""

import threading
from collections.abc import Mapping


class Counters:
    """Counts by name, from any thread; a name may carry a reason after a dot."""

    def __init__(self) -> None:
        """Start with nothing counted."""
        # Re-entrant: a stream abandoned to the garbage collector counts in the middle of anything.
        self._lock = threading.RLock()
        self._counts: dict[str, int] = {}

    def add(self, name: str, amount: int = 1) -> None:
        """Count."""
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + amount

    def get(self, name: str) -> int:
        """Return one count; 0 where nothing was counted."""
        return self._counts.get(name, 0)

    def total(self, prefix: str) -> int:
        """Return the sum of a name and of all its reasons."""
        with self._lock:
            return sum(count for name, count in self._counts.items() if name == prefix or name.startswith(prefix + "."))

    def snapshot(self) -> Mapping[str, int]:
        """Return all counts as they are now."""
        with self._lock:
            return dict(sorted(self._counts.items()))

    def after_fork(self) -> None:
        """Start over in a child process: what the parent counted, the parent reports."""
        self.__init__()  # type: ignore[misc]
