"""A number → a database as that many trajectories leave it, made by ClickHouse itself from the row number alone.

Trajectory i belongs to group i / 8, which belongs to batch and step i / 128; the newest hundredth is still pending. The
rows are as the sink makes them; what is in them is in `shape`.
"""

from collections.abc import Iterator

from rollbus.consumers.clickhouse.store.client import ClickHouse
from tests.trajectories.shape import (
    GROUP_SIZE,
    GROUPS_PER_STEP,
    NAMESPACE,
    REPLAY,
    STEPS_PER_WINDOW,
    TABLES,
    WITH,
)

BLOCK = 102_400
"""Trajectories in one insert: whole windows, and the server's memory stays small."""

_TOPICS = {
    "episode-events": ("events", "episodes", "turns", "turn_tokens", "rewards", "tool_calls", "sink_ranges"),
    "trajectories": ("trajectories", "trajectory_turns", "reward_revisions"),
    "scores": ("scores",),
    "run-log": ("groups", "group_members"),
    "curriculum": ("curriculum_states",),
    "batches": ("batches", "batch_groups"),
    "training-steps": ("steps", "step_members"),
    "policy-versions": ("policy_versions",),
    "evaluations": ("evaluations",),
    "drops": ("drops", "drop_trajectories"),
    "dead-letters": ("dead_letters",),
}
_REPLAY = (
    "INSERT INTO replays (namespace, name, replay_namespace, source_namespace, state, started_at) "
    "VALUES ('{namespace}', 'x', '{replay}', '{namespace}', 'complete', now64(3))",
    "INSERT INTO scores SELECT * REPLACE ('{replay}' AS namespace, "
    "if(kafka_offset % 20 = 0, 1 - value, value) AS value) "
    "FROM scores WHERE namespace = '{namespace}' AND kafka_offset % 10 = 0",
)
"""A tenth of the scores stand a second time in the namespace of a replay, every other one with another reward."""


def fill(client: ClickHouse, trajectories: int, *, namespace: str = NAMESPACE) -> Iterator[str]:
    """Make the rows of every table, one table after the other, and yield its name."""
    for topic, tables in _TOPICS.items():
        for table in tables:
            for start in range(0, trajectories, BLOCK):
                client.command(insert(table, topic, start, min(start + BLOCK, trajectories), trajectories, namespace))
            yield table
    for statement in _REPLAY:
        client.command(statement.format(namespace=namespace, replay=REPLAY))
    yield "replays"


def insert(table: str, topic: str, start: int, end: int, trajectories: int, namespace: str = NAMESPACE) -> str:
    """Return the statement that makes the rows of trajectories start … end − 1 in one table."""
    columns, rest = TABLES[table]
    per_step = GROUP_SIZE * GROUPS_PER_STEP
    if "GROUP BY" in rest:  # a step or window belongs to the block in which it begins
        whole = per_step * STEPS_PER_WINDOW
        start, end = -(-start // whole) * whole, min(-(-end // whole) * whole, trajectories)
    selected_columns = {"namespace": f"'{namespace}'", **columns, "kafka_topic": f"'{topic}'", "kafka_partition": "0"}
    if table != "sink_ranges":
        selected_columns["kafka_timestamp"] = "max(at)" if "GROUP BY" in rest else "at"
    select = f"{WITH} SELECT {', '.join(selected_columns.values())} FROM numbers({start}, {max(0, end - start)}) {rest}"
    return f"INSERT INTO {table} ({', '.join(selected_columns)}) {select}".replace(
        "{pending}", str(pending_from(trajectories))
    )


def pending_from(trajectories: int) -> int:
    """Return the first trajectory that still waits."""
    per_step = GROUP_SIZE * GROUPS_PER_STEP
    return trajectories - trajectories // 100 // per_step * per_step
