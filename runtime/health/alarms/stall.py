"""Where each part of a worker is, look after look → the parts that do not move although there is more to do.

The worker shows the longest wait in its heartbeat, and its watchdog ends the process for a stall.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class StandstillWatch:
    """Since when each part of the worker is behind without moving."""

    stalled_s: float
    _since: dict[Hashable, tuple[Hashable, float]] = field(default_factory=dict)
    """Position, and when it was first seen there while behind."""

    def observe(self, places: Iterable[tuple[Hashable, Hashable, bool]], *, now_s: float) -> list[str]:
        """Take (place, position, whether it is behind) of each part; describe those that are stalled."""
        still: dict[Hashable, tuple[Hashable, float]] = {}
        stalled = []
        for place, position, behind in places:
            if not behind:
                continue
            before = self._since.get(place)
            still[place] = before if before and before[0] == position else (position, now_s)
            stood_s = now_s - still[place][1]
            if stood_s >= self.stalled_s:
                stalled.append(f"{place} has been at {position} for {stood_s:.0f} s although there is more to do")
        self._since = still
        return stalled

    def longest_wait(self, *, now_s: float) -> tuple[str, float] | None:
        """Return the part that is behind and has not moved for longest, with its position, and for how many seconds."""
        since = [(since_s, f"{place} at {position}") for place, (position, since_s) in self._since.items()]
        since_s, part = min(since, default=(now_s, ""))
        return (part, now_s - since_s) if part else None
