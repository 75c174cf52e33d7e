"""How far consumer groups are behind, look after look → which of them fall further behind."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from rollbus.runtime.health.alarms.limits import AlarmLimits
from rollbus.runtime.health.alarms.problem import RUNBOOK, Problem, say_duration

LAG_S = 300.0
"""How long a lag must grow: a burst is read within minutes, and what takes longer is more than the readers take."""


@dataclass(frozen=True, slots=True)
class Lag:
    """One consumer group in one topic, both without the namespace."""

    group: str
    topic: str
    members: int
    lag: int


@dataclass(frozen=True, slots=True)
class GroupHealth:
    """One consumer group in one topic."""

    group: str
    topic: str
    members: int
    lag: int
    growth_per_s: float | None
    """By how much the lag grew since the earliest look that is remembered; None at the first."""


@dataclass(slots=True)
class LagHistory:
    """Earlier lags, to see which grow."""

    keep_s: float
    looks: list[tuple[int, dict[tuple[str, str], int]]] = field(default_factory=list)

    def add(self, now_ms: int, lags: Iterable[Lag]) -> None:
        """Remember a look's lags, and forget what is older than the window, but for the last before it."""
        self.looks.append((now_ms, {(lag.group, lag.topic): lag.lag for lag in lags}))
        first_ms = now_ms - self.keep_s * 1000
        while len(self.looks) > 2 and self.looks[1][0] <= first_ms:
            del self.looks[0]

    def growth(self, group: str, topic: str) -> tuple[float, int] | None:
        """Return by how many records a lag grew, and over how many milliseconds; None with fewer than two looks."""
        lags = self._lags_of(group, topic)
        if len(lags) < 2 or lags[-1][0] == lags[0][0]:
            return None
        return lags[-1][1] - lags[0][1], lags[-1][0] - lags[0][0]

    def is_growing(self, group: str, topic: str) -> bool:
        """Say whether every lag in the last third of the time is above every lag in the first third.

        Idle stages commit their ticks every ten seconds, so the lag of many partitions goes up and down by thousands.
        """
        lags = self._lags_of(group, topic)
        third_ms = (lags[-1][0] - lags[0][0]) / 3
        first = [lag for at_ms, lag in lags if at_ms <= lags[0][0] + third_ms]
        return max(first) < min(lag for at_ms, lag in lags if at_ms >= lags[-1][0] - third_ms)

    def _lags_of(self, group: str, topic: str) -> list[tuple[int, int]]:
        return [(at_ms, lags[group, topic]) for at_ms, lags in self.looks if (group, topic) in lags]


def draw_group(lag: Lag, history: LagHistory) -> GroupHealth:
    """Return a consumer group with the growth of its lag."""
    growth = history.growth(lag.group, lag.topic)
    rate = None if growth is None else growth[0] / growth[1] * 1000
    return GroupHealth(lag.group, lag.topic, lag.members, lag.lag, rate)


def find_lag_problems(group: GroupHealth, history: LagHistory, limits: AlarmLimits) -> Iterable[Problem]:
    """Yield a group that no process reads for, or that falls further behind."""
    if limits.lag_records is None or group.lag < limits.lag_records:
        return
    name = f"{group.group} in {group.topic}"
    if group.members == 0:
        what = f"no process reads {group.topic} for {group.group}, and {group.lag} records wait"
        yield Problem("lag", name, what, f"start the process that reads it; {RUNBOOK}#lag")
        return
    growth = history.growth(group.group, group.topic)
    if growth is None or growth[1] < LAG_S * 1000 or not history.is_growing(group.group, group.topic):
        return
    what = f"{group.group} is {group.lag} records behind in {group.topic}, {growth[0]:.0f} more than "
    what += f"{say_duration(growth[1])} ago"
    yield Problem("lag", name, what, f"start more processes, or find what slows it; {RUNBOOK}#lag")
