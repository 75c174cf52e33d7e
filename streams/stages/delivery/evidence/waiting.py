"""When is an episode old enough to be counted? The delays of both versions' rewards → how long each new episode waits.

Every episode is counted once, with the reward that it has then. Its wait is fixed when it comes, from what is known of
earlier episodes, and is the same for both versions. So neither its version nor its own reward has a part in when it is
counted, and intervals that hold at all times go on to hold. The wait is the age by which nearly all rewards of both
versions have come, by their Kaplan-Meier curves: a version whose rewards come later makes both wait longer, and looks
neither worse nor better for it. Until enough rewards of both were followed for the longest wait, it is the longest.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from rollbus.streams.stages.delivery.evidence.delays import fit_delays

OUTSTANDING = 0.001
"""Share of a version's rewards that may still be outstanding when an episode is counted, of those that ever come."""
UNSEEN = 2 * OUTSTANDING
"""So much the means of two versions differ at most, on the scale of [0, 1], for what is still outstanding of both."""
LEAST_REWARDS = 100
"""Of each version, followed for the longest wait, before any episode waits less."""


@dataclass(frozen=True, slots=True)
class Delays:
    """One version's episodes that were followed for the longest wait."""

    came: Mapping[int, int] = field(default_factory=dict)
    """Episodes by the age in ms at which the reward came, rounded up to two digits: so there are few ages."""
    never: int = 0

    def add(self, age_ms: int | None) -> "Delays":
        """Return the delays with one more episode; None is a reward that did not come."""
        if age_ms is None:
            return Delays(self.came, self.never + 1)
        age_ms = _round_up(age_ms)
        return Delays({**self.came, age_ms: self.came.get(age_ms, 0) + 1}, self.never)


def choose_wait(
    delays: Delays, *, came: Mapping[int, int], outstanding: Mapping[int, int], longest_ms: int
) -> int | None:
    """Return the age by which nearly all of a version's rewards come; None while too little is known.

    `came` and `outstanding` are of episodes that are younger than the longest wait: how many, by age.
    """
    if sum(delays.came.values()) < LEAST_REWARDS:
        return None
    curve = fit_delays(Counter(delays.came) + Counter(came), Counter({longest_ms: delays.never}) + Counter(outstanding))
    least_share = (1 - OUTSTANDING) * curve[-1].share
    return min(longest_ms, _round_up(next(point.age_ms for point in curve if point.share >= least_share)))


def _round_up(age_ms: int) -> int:
    unit: int = 10 ** max(0, len(str(age_ms)) - 2)
    return -(-age_ms // unit) * unit
