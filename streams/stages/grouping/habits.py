"""How a task's traffic comes, learned from its scores: whether examples come again, and how late rewards change.

Pure arithmetic over one small row per task. Grouping decides by it whether an attempt waits for others at its example,
and how long a score that has a reward waits for a further one.
"""

from dataclasses import dataclass, replace
from itertools import accumulate

DECAY = 0.9
"""Weight that an attempt keeps with each later one: the last ten count most."""
LATE_DECAY = 0.98
"""The same for late rewards, which are rarer: the last fifty attempts count most."""
COMES_AGAIN = 1 / 3
"""Share of attempts at an example that was there a moment before, from which on attempts wait for others. Groups of two
give a half, groups of eight seven eighths."""
COMES_LATE = 0.05
"""Share of rewarded attempts whose reward changes later, from which on scores wait for it."""
COVERED = 0.95
"""Share of the late changes that scores wait for."""
DELAY_STEPS = 18
"""Delays are counted by powers of two of a second, up to 36 hours."""


@dataclass(frozen=True, slots=True)
class Habit:
    """Decaying counts of one task's attempts."""

    attempts: float = 0.0
    repeats: float = 0.0
    """Of which another attempt at the example had come within the group's window."""
    rewarded: float = 0.0
    delays: tuple[float, ...] = ()
    """Rewarded attempts whose reward changed afterwards, by delay: at most 1 s, 2 s, 4 s, …"""

    def with_attempt(self, *, again: bool) -> "Habit":
        """Return the habit after one more attempt."""
        return replace(self, attempts=DECAY * self.attempts + 1, repeats=DECAY * self.repeats + again)

    def with_rewarded(self) -> "Habit":
        """Return the habit after an attempt that had a reward when it came."""
        delays = tuple(LATE_DECAY * count for count in self.delays)
        return replace(self, rewarded=LATE_DECAY * self.rewarded + 1, delays=delays)

    def with_late_change(self, delay_ms: int) -> "Habit":
        """Return the habit after a reward changed so long after its score had come."""
        step = min((max(delay_ms - 1, 0) // 1000).bit_length(), DELAY_STEPS - 1)
        delays = self.delays or (0.0,) * DELAY_STEPS
        return replace(self, delays=(*delays[:step], delays[step] + 1, *delays[step + 1 :]))

    @property
    def comes_again(self) -> bool:
        """Whether attempts at an example usually come several at a time."""
        return self.repeats > COMES_AGAIN * self.attempts

    def grace_ms(self, most_ms: int) -> int:
        """Return how long a rewarded score waits for what usually changes its reward within `most_ms`; 0 if nothing."""
        counts = [count for step, count in enumerate(self.delays) if 1000 * 2**step <= most_ms]
        sums = list(accumulate(counts))
        if not sums or not sums[-1] or sums[-1] < COMES_LATE * self.rewarded:
            return 0
        return int(1000 * 2 ** next(step for step, total in enumerate(sums) if total >= COVERED * sums[-1]))
