"""Whether one principal's episodes may still count in an arm: nobody brings more of them to a canary than chance does.

A producer sees which version answered. It can give up the episodes that it does not like before it records them, or
repeat its tries until the canary answers. Chance alone gives its episodes to the canary by their shares; what is beyond
any chance does not count. Pure.
"""

from dataclasses import dataclass, replace
from math import sqrt

from rollbus.schemas.shares import share_of

DEVIATIONS, SLACK = 4.0, 3.0
"""How far chance may be from the expected number of canary episodes, in standard deviations and in episodes: honest
traffic of 20,000 episodes gets there in about one of 500 runs, and then loses a few episodes."""
SMALL = 10
"""So many episodes of an arm may be one principal's, whatever its share is."""


@dataclass(frozen=True, slots=True)
class Balance:
    """The episodes of one principal that count, or of all together."""

    canary: int = 0
    serving: int = 0
    expected: float = 0.0
    """Canary episodes, by the shares of the episodes that count."""
    variance: float = 0.0

    def add(self, *, is_canary: bool, share: float) -> "Balance":
        """Return the balance with one more episode."""
        return replace(
            self,
            canary=self.canary + is_canary,
            serving=self.serving + (not is_canary),
            expected=self.expected + share,
            variance=self.variance + share * (1 - share),
        )

    @property
    def episodes(self) -> int:
        """Of both arms."""
        return self.canary + self.serving

    def in_arm(self, *, is_canary: bool) -> int:
        """Return how many episodes of an arm there are."""
        return self.canary if is_canary else self.serving

    def is_by_chance(self) -> bool:
        """Say whether chance may have given so many of these episodes to the canary."""
        return abs(self.canary - self.expected) <= DEVIATIONS * sqrt(self.variance) + SLACK


def may_count(principals: Balance, everybodys: Balance, *, is_canary: bool, share: float, most: float) -> bool:
    """Say whether one more episode of a principal may count in an arm, of which it may have the share `most`."""
    after = principals.add(is_canary=is_canary, share=share)
    is_excess = (after.canary > after.expected) == is_canary
    if is_excess and not after.is_by_chance():
        return False
    total = everybodys.in_arm(is_canary=is_canary) + 1
    return most >= 1 or after.in_arm(is_canary=is_canary) <= max(SMALL, share_of(most, total))
