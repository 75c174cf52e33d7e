"""What the demo shows while it runs: counts and rewards from ClickHouse, lag from Kafka → one `DemoStatus`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Query = Callable[[str, Mapping[str, Any]], tuple[list[str], list[tuple[Any, ...]]]]
"""SQL and its parameters → column names and rows; `ClickHouse.query`."""

COUNTS = """
SELECT
    (SELECT count() FROM events WHERE namespace = {namespace:String}) AS events,
    (SELECT count() FROM episodes WHERE namespace = {namespace:String}) AS episodes,
    (SELECT countIf(NOT resampled) FROM episodes WHERE namespace = {namespace:String}) AS from_traffic,
    (SELECT count() FROM trajectories WHERE namespace = {namespace:String}) AS trajectories,
    (SELECT count() FROM groups WHERE namespace = {namespace:String} AND run_id = {run:String}) AS groups,
    (SELECT countIf(NOT has_signal) FROM groups WHERE namespace = {namespace:String} AND run_id = {run:String})
        AS without_signal,
    (SELECT count() FROM batches WHERE namespace = {namespace:String} AND run_id = {run:String}) AS batches,
    (SELECT uniqExact(step) FROM steps WHERE namespace = {namespace:String} AND run_id = {run:String}
        AND state IN ('completed', 'skipped')) AS steps,
    (SELECT sum(trained) FROM steps WHERE namespace = {namespace:String} AND run_id = {run:String}
        AND state = 'completed') AS trained,
    (SELECT max(policy_version) FROM steps WHERE namespace = {namespace:String} AND run_id = {run:String}
        AND state = 'completed') AS version,
    (SELECT count() FROM dead_letters WHERE namespace = {namespace:String}) AS dead_letters,
    (SELECT argMax(if(command = 'pause', ifNull(comment, ''), ''), kafka_offset) FROM run_commands
        WHERE namespace = {namespace:String} AND run_id = {run:String} AND command IN ('pause', 'resume')) AS pause
"""
REWARDS = """
SELECT assumeNotNull(max_policy_version) AS version, count(), avg(value), stddevSampStable(value), avg(value = 1)
FROM scores
WHERE namespace = {namespace:String} AND outcome = 'scored' AND max_policy_version IS NOT NULL
GROUP BY version
ORDER BY version
"""
GROUPS = """
SELECT max(assumeNotNull(max_policy_version)) AS version, avg(value = 1) AS wins
FROM scores FINAL
WHERE namespace = {namespace:String} AND outcome = 'scored' AND max_policy_version IS NOT NULL
GROUP BY group_hint
ORDER BY version, group_hint
"""
DROPS = """
SELECT reason, count() FROM drop_trajectories
WHERE namespace = {namespace:String} AND run_id IN ('', {run:String})
GROUP BY reason ORDER BY reason
"""


@dataclass(frozen=True, slots=True)
class VersionReward:
    """What the episodes of one policy version were worth."""

    version: int
    episodes: int
    reward: float
    deviation: float
    wins: float
    """Share."""


@dataclass(frozen=True, slots=True)
class GroupWins:
    """How the attempts of one group ended. They often end alike, so the plot counts groups and not attempts."""

    version: int
    """The newest that played in it."""
    wins: float
    """Share."""


@dataclass(frozen=True, slots=True)
class DemoStatus:
    """The counts of all stages, read from ClickHouse, which is a second or two behind."""

    events: int = 0
    episodes: int = 0
    """Attempts: those at what users brought, and those made again off the hot path."""
    from_traffic: int = 0
    """Attempts that users waited for: one for each of what they brought."""
    trajectories: int = 0
    groups: int = 0
    without_signal: int = 0
    batches: int = 0
    steps: int = 0
    trained: int = 0
    version: int = 0
    dead_letters: int = 0
    pause: str = ""
    """Why the run is paused; empty if it is not."""
    rewards: tuple[VersionReward, ...] = ()
    drops: Mapping[str, int] = field(default_factory=dict)
    """Trajectories by reason code."""
    lag: Mapping[str, int] = field(default_factory=dict)
    """Records that a stage has not read yet, by stage."""

    @property
    def is_drained(self) -> bool:
        """Whether every episode has become a trajectory and every batch a step."""
        return self.episodes == self.trajectories and self.batches == self.steps

    @property
    def passed_over(self) -> int:
        """Trajectories of groups with signal that gave way to newer ones, or became stale."""
        return self.drops.get("superseded", 0) + self.drops.get("stale", 0)

    def progress(self) -> tuple[int, ...]:
        """Return the counts that change while anything is in progress."""
        return self.events, self.trajectories, self.groups, self.batches, self.steps


def read_status(query: Query, *, namespace: str, run: str, lag: Mapping[str, int] | None = None) -> DemoStatus:
    """Ask ClickHouse; raises UnavailableError and RejectedError."""
    parameters = {"namespace": namespace, "run": run}
    columns, (row,) = query(COUNTS, parameters)
    values = dict(zip(columns, row, strict=True))
    pause = str(values.pop("pause", ""))
    counts = {name: int(value or 0) for name, value in values.items()}
    rewards = tuple(
        VersionReward(int(version), int(episodes), float(reward), float(deviation or 0.0), float(wins))
        for version, episodes, reward, deviation, wins in query(REWARDS, parameters)[1]
    )
    drops = {str(reason): int(count) for reason, count in query(DROPS, parameters)[1]}
    return DemoStatus(**counts, pause=pause, rewards=rewards, drops=drops, lag=lag or {})


def read_groups(query: Query, *, namespace: str) -> tuple[GroupWins, ...]:
    """Return every group that was played, by version."""
    _, rows = query(GROUPS, {"namespace": namespace})
    return tuple(GroupWins(int(version), float(wins)) for version, wins in rows)
