"""A number → a database as that many trajectories leave it, made by ClickHouse itself from the row number alone.

Trajectory i belongs to group i / 8, which belongs to batch and step i / 128. Of ten groups three have no signal; of
fifty trajectories one cannot be trained and one is too old; the newest hundredth is still pending.
"""

from collections.abc import Iterator

from rollbus.consumers.clickhouse.client_clickhouse import ClickHouse

NAMESPACE = "rollbus."
GROUP_SIZE, GROUPS_PER_STEP = 8, 16
TURNS = 2
BLOCK = 50_000
"""Trajectories in one insert: the server's memory stays small."""

_EPISODE = "lower(hex(MD5(concat('e', toString(i)))))"
_TRAJECTORY = "lower(hex(MD5(concat('t', toString(i)))))"
_GROUP = "lower(hex(MD5(concat('g', toString(g)))))"
_BATCH = "lower(hex(MD5(concat('b', toString(s)))))"
_AT = "toDateTime64('2026-01-01 00:00:00', 3, 'UTC') + toIntervalSecond(i)"
_VERSION = "toInt64(greatest(0, s - 1 - i % 3))"
_REWARD = "toFloat64(if(g % 10 < 3, 1, (i % 8) % 2))"
_STATE = (
    "multiIf(i % 50 = 49, 'untrainable', i >= {pending}, 'pending', g % 10 < 3, 'no_signal', "
    "i % 50 = 48, 'stale', 'trained')"
)

_WITH = (
    f"WITH number AS i, intDiv(i, {GROUP_SIZE}) AS g, intDiv(i, {GROUP_SIZE * GROUPS_PER_STEP}) + 1 AS s, "
    f"{_EPISODE} AS episode, {_TRAJECTORY} AS trajectory, {_GROUP} AS group, {_BATCH} AS batch, {_AT} AS at, "
    f"{_VERSION} AS version, {_REWARD} AS reward, {_STATE} AS state, concat('task-', toString(g % 20)) AS task"
)
_TEXT = "arrayStringConcat(arrayMap(n -> hex(cityHash64(i, n)), range(8)), ' ')"
_TOKENS = "arrayMap(n -> toInt32(cityHash64(i, n) % 32000), range({count}))"
_LOGPROBS = "arrayMap(n -> toFloat32(-(cityHash64(i, n) % 1000) / 300), range({count}))"

# Per table: columns with their expressions, and what is joined to each trajectory (ARRAY JOIN), or a condition.
_TABLES: dict[str, tuple[dict[str, str], str]] = {
    "events": (
        {
            "event_id": "concat(episode, toString(sequence))",
            "kind": "['EpisodeStarted', 'TurnRecorded', 'TurnRecorded', 'RewardReported', 'EpisodeEnded', "
            "'WriterClosed'][sequence + 1]",
            "episode_id": "episode",
            "root_episode_id": "episode",
            "writer_id": "'w1'",
            "sequence": "sequence",
            "occurred_at": "at + toIntervalMillisecond(sequence * 100)",
            "episode_started_at": "at",
            "producer": "'web'",
            "kafka_offset": "i * 6 + sequence",
        },
        "ARRAY JOIN range(6) AS sequence",
    ),
    "episodes": (
        {
            "episode_id": "episode",
            "event_id": "concat(episode, '0')",
            "root_episode_id": "episode",
            "task": "task",
            "agent": "'player'",
            "labels": "map('user', concat('user-', toString(i % 5000)))",
            "started_at": "at",
            "kafka_offset": "i * 6",
        },
        "",
    ),
    "turns": (
        {
            "episode_id": "episode",
            "event_id": "concat(episode, toString(turn + 1))",
            "writer_id": "'w1'",
            "sequence": "turn + 1",
            "model": "concat('agent@', toString(version))",
            "policy_version": "version",
            "prefix_count": "turn * 2",
            "added_messages": f'concat(\'[{{"role":"user","content":"\', {_TEXT}, \'"}}]\')',
            "completion": f'concat(\'{{"role":"assistant","content":"\', {_TEXT}, \'"}}\')',
            "completion_text": _TEXT,
            "trainable": "1",
            "prompt_tokens": "100 + turn * 40",
            "completion_tokens": "20",
            "latency_ms": "i % 900",
            "episode_started_at": "at",
            "occurred_at": "at + toIntervalMillisecond(turn * 100 + 100)",
            "kafka_offset": "i * 6 + turn + 1",
        },
        f"ARRAY JOIN range({TURNS}) AS turn",
    ),
    "turn_tokens": (
        {
            "episode_id": "episode",
            "event_id": "concat(episode, toString(turn + 1))",
            "prompt_token_ids": _TOKENS.format(count=100),
            "completion_token_ids": _TOKENS.format(count=20),
            "logprobs": _LOGPROBS.format(count=20),
            "episode_started_at": "at",
            "kafka_offset": "i * 6 + turn + 1",
        },
        f"ARRAY JOIN range({TURNS}) AS turn",
    ),
    "rewards": (
        {
            "episode_id": "episode",
            "event_id": "concat(episode, '3')",
            "name": "'reward'",
            "value": "reward",
            "source": "'agent'",
            "episode_started_at": "at",
            "occurred_at": "at + toIntervalMillisecond(300 + i % 5000)",
            "kafka_offset": "i * 6 + 3",
        },
        "",
    ),
    "trajectories": (
        {
            "trajectory_id": "trajectory",
            "episode_id": "episode",
            "root_episode_id": "episode",
            "task": "task",
            "group_hint": "concat('example:', task, toString(g))",
            "agent": "'player'",
            "producer": "'web'",
            "labels": "map('user', concat('user-', toString(i % 5000)))",
            "started_at": "at",
            "ended_at": "at + toIntervalMillisecond(500)",
            "assembled_at": "at + toIntervalSecond(1)",
            "closed_by": "'ended'",
            "turns": str(TURNS),
            "rewards": "1",
            "histories": "1",
            "tokens": "140 + i % 60",
            "sampled_tokens": "40",
            "min_policy_version": "version",
            "max_policy_version": "version",
            "prompt_hash": "group",
            "trainable": "state != 'untrainable'",
            "untrainable_reason": "if(state = 'untrainable', 'no_logprobs', NULL)",
            "kafka_offset": "i",
        },
        "",
    ),
    "trajectory_turns": (
        {
            "trajectory_id": "trajectory",
            "episode_id": "episode",
            "turn": "turn",
            "event_id": "concat(episode, toString(turn + 1))",
            "model": "concat('agent@', toString(version))",
            "policy_version": "version",
            "trainable": "1",
            "started_at": "at",
            "occurred_at": "at + toIntervalMillisecond(turn * 100 + 100)",
            "kafka_offset": "i",
        },
        f"ARRAY JOIN range({TURNS}) AS turn",
    ),
    "scores": (
        {
            "trajectory_id": "trajectory",
            "episode_id": "episode",
            "location_topic": "'rollbus.trajectories'",
            "location_offset": "i",
            "task": "task",
            "group_hint": "concat('example:', task, toString(g))",
            "agent": "'player'",
            "labels": "map('user', concat('user-', toString(i % 5000)))",
            "model": "'agent'",
            "tokens": "140 + i % 60",
            "sampled_tokens": "40",
            "min_policy_version": "version",
            "max_policy_version": "version",
            "trainable": "1",
            "outcome": "'scored'",
            "value": "reward",
            "components": "map('win', reward, 'style', 0.1 * reward)",
            "reward_version": "'r1'",
            "kafka_offset": "i",
        },
        "WHERE state != 'untrainable'",
    ),
    "groups": (
        {
            "run_id": "'main'",
            "group_id": "group",
            "group_key": "concat('example:', task, toString(g))",
            "model": "'agent'",
            "task": "task",
            "strategy": "'by_example'",
            "size": str(GROUP_SIZE),
            "reward_mean": "if(g % 10 < 3, 1, 0.5)",
            "reward_std": "if(g % 10 < 3, 0, 0.5)",
            "reward_min": "if(g % 10 < 3, 1, 0)",
            "reward_max": "1",
            "has_signal": "g % 10 >= 3",
            "closed_by": "'full'",
            "closed_at": "at",
            "kafka_offset": "g",
        },
        f"WHERE i % {GROUP_SIZE} = 0 AND i < {{pending}}",
    ),
    "group_members": (
        {
            "run_id": "'main'",
            "group_id": "group",
            "trajectory_id": "trajectory",
            "episode_id": "episode",
            "location_topic": "'rollbus.trajectories'",
            "location_offset": "i",
            "reward": "reward",
            "advantage": "if(g % 10 < 3, 0, reward - 0.5)",
            "components": "map('win', reward, 'style', 0.1 * reward)",
            "min_policy_version": "version",
            "max_policy_version": "version",
            "tokens": "140 + i % 60",
            "sampled_tokens": "40",
            "closed_at": "at",
            "kafka_offset": "g",
        },
        "WHERE state != 'untrainable' AND i < {pending}",
    ),
    "batches": (
        {
            "run_id": "'main'",
            "batch_hash": "batch",
            "model": "'agent'",
            "number": "s - 1",
            "window": "intDiv(s, 4)",
            "groups": "countIf(i % 8 = 0 AND g % 10 >= 3)",
            "trajectories": "countIf(g % 10 >= 3)",
            "newest_policy_version": "s - 1",
            "cut_at": "max(at)",
            "kafka_offset": "s",
        },
        "WHERE i < {pending} GROUP BY s",
    ),
    "batch_groups": (
        {
            "run_id": "'main'",
            "batch_hash": "batch",
            "number": "s - 1",
            "position": "g % 16",
            "group_id": "group",
            "kafka_offset": "s",
        },
        f"WHERE i % {GROUP_SIZE} = 0 AND g % 10 >= 3 AND i < {{pending}}",
    ),
    "steps": (
        {
            "run_id": "'main'",
            "step": "s",
            "state": "'completed'",
            "model": "'agent'",
            "batch_hash": "batch",
            "batch_number": "s - 1",
            "base_version": "s - 1",
            "policy_version": "s",
            "trained": "countIf(state = 'trained')",
            "dropped": "countIf(state = 'stale')",
            "metrics": "map('loss', 0.1, 'entropy', 1 + 1 / s, 'grad_norm', 0.5, 'kl', 0.01, 'clip_fraction', 0.1)",
            "final": "1",
            "started_at": "max(at)",
            "ended_at": "max(at) + toIntervalSecond(5)",
            "kafka_offset": "s",
        },
        "WHERE i < {pending} GROUP BY s",
    ),
    "step_members": (
        {
            "run_id": "'main'",
            "step": "s",
            "batch_hash": "batch",
            "group_id": "group",
            "trajectory_id": "trajectory",
            "fate": "if(state = 'stale', 'dropped', 'trained')",
            "reason": "if(state = 'stale', 'stale', NULL)",
            "lag": "if(state = 'stale', NULL, i % 3)",
            "advantage": "if(state = 'stale', NULL, reward - 0.5)",
            "sampled_tokens": "if(state = 'stale', NULL, 40)",
            "policy_version": "if(state = 'stale', NULL, s)",
            "ended_at": "at",
            "kafka_offset": "s",
        },
        "WHERE state IN ('trained', 'stale')",
    ),
    "policy_versions": (
        {
            "model": "'agent'",
            "version": "s",
            "parent": "s - 1",
            "run_id": "'main'",
            "step": "s",
            "batch_hash": "batch",
            "state": "'serving'",
            "changed_at": "max(at)",
            "kafka_offset": "s",
        },
        "WHERE i < {pending} GROUP BY s",
    ),
    "evaluations": (
        {
            "evaluation_id": "concat('evaluation-', toString(s))",
            "model": "'agent'",
            "policy_version": "s",
            "run_id": "'main'",
            "name": "'held-out'",
            "episodes": "800",
            "metrics": "map('win', 0.5, 'win_low', 0.45, 'win_high', 0.55)",
            "evaluated_at": "max(at)",
            "kafka_offset": "s",
        },
        "WHERE s % 10 = 0 GROUP BY s",
    ),
    "drops": (
        {
            "run_id": "if(state = 'no_signal', 'main', '')",
            "unit": "if(state = 'no_signal', 'group', 'trajectory')",
            "unit_id": "if(state = 'no_signal', group, trajectory)",
            "reason": "state",
            "stage": "if(state = 'no_signal', 'curriculum', 'scoring')",
            "trajectories": "if(state = 'no_signal', 8, 1)",
            "detail": "state",
            "dropped_at": "at",
            "kafka_offset": "i",
        },
        "WHERE state = 'untrainable' OR (state = 'no_signal' AND i % 8 = 0)",
    ),
    "drop_trajectories": (
        {
            "run_id": "if(state = 'no_signal', 'main', '')",
            "trajectory_id": "trajectory",
            "reason": "state",
            "stage": "if(state = 'no_signal', 'curriculum', 'scoring')",
            "unit": "if(state = 'no_signal', 'group', 'trajectory')",
            "unit_id": "if(state = 'no_signal', group, trajectory)",
            "dropped_at": "at",
            "kafka_offset": "i",
        },
        "WHERE state IN ('untrainable', 'no_signal')",
    ),
}

_TOPICS = {
    "episode-events": ("events", "episodes", "turns", "turn_tokens", "rewards"),
    "trajectories": ("trajectories", "trajectory_turns"),
    "scores": ("scores",),
    "run-log": ("groups", "group_members"),
    "batches": ("batches", "batch_groups"),
    "training-steps": ("steps", "step_members"),
    "policy-versions": ("policy_versions",),
    "evaluations": ("evaluations",),
    "drops": ("drops", "drop_trajectories"),
}


def fill(client: ClickHouse, trajectories: int, *, namespace: str = NAMESPACE) -> Iterator[str]:
    """Make the rows of every table, one table after the other, and yield its name."""
    for topic, tables in _TOPICS.items():
        for table in tables:
            for start in range(0, trajectories, BLOCK):
                client.command(insert(table, topic, start, min(start + BLOCK, trajectories), trajectories, namespace))
            yield table


def insert(table: str, topic: str, start: int, end: int, trajectories: int, namespace: str = NAMESPACE) -> str:
    """Return the statement that makes the rows of trajectories start … end − 1 in one table."""
    columns, rest = _TABLES[table]
    per_step = GROUP_SIZE * GROUPS_PER_STEP
    if "GROUP BY s" in rest:  # a step belongs to the block in which it begins
        start, end = -(-start // per_step) * per_step, -(-end // per_step) * per_step
    made = {
        "namespace": f"'{namespace}'",
        **columns,
        "kafka_topic": f"'{topic}'",
        "kafka_partition": "0",
        "kafka_timestamp": "max(at)" if "GROUP BY" in rest else "at",
    }
    select = f"{_WITH} SELECT {', '.join(made.values())} FROM numbers({start}, {max(0, end - start)}) {rest}"
    pending = trajectories - trajectories // 100 // per_step * per_step
    return f"INSERT INTO {table} ({', '.join(made)}) {select}".replace("{pending}", str(pending))


def expected(trajectories: int) -> dict[str, int]:
    """Return how many trajectories have which fate."""
    pending_from = trajectories - trajectories // 100 // 128 * 128
    fates = {"trained": 0, "no_signal": 0, "untrainable": 0, "stale": 0, "pending": 0}
    for number in range(trajectories):
        group = number // GROUP_SIZE
        fates[
            "untrainable"
            if number % 50 == 49
            else "pending"
            if number >= pending_from
            else "no_signal"
            if group % 10 < 3
            else "stale"
            if number % 50 == 48
            else "trained"
        ] += 1
    return fates
