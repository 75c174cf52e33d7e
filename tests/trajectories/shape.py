"""The rows of each table as SQL over the number i of a trajectory.

A row of `TABLES` has the expression of each column, and the clause that selects or multiplies the rows. In the
expressions i is the trajectory, g its group and s its training step, all by number.

Three of ten groups have no signal. One of fifty trajectories cannot be trained, and one is too old. One of a thousand
has a late event, and an episode with missing events comes with it. Every second trajectory calls a tool, and one of
ten calls fails.
"""

NAMESPACE = "rollbus."
REPLAY = "replay-x."
GROUP_SIZE, GROUPS_PER_STEP, STEPS_PER_WINDOW = 8, 16, 4
TURNS = 2

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

WITH = (
    f"WITH number AS i, intDiv(i, {GROUP_SIZE}) AS g, intDiv(i, {GROUP_SIZE * GROUPS_PER_STEP}) + 1 AS s, "
    f"{_EPISODE} AS episode, {_TRAJECTORY} AS trajectory, {_GROUP} AS group, {_BATCH} AS batch, {_AT} AS at, "
    f"{_VERSION} AS version, {_REWARD} AS reward, {_STATE} AS state, concat('task-', toString(g % 20)) AS task"
)
_TEXT = "arrayStringConcat(arrayMap(n -> hex(cityHash64(i, n)), range(8)), ' ')"
_TOKENS = "arrayMap(n -> toInt32(cityHash64(i, n) % 32000), range({count}))"
_LOGPROBS = "arrayMap(n -> toFloat32(-(cityHash64(i, n) % 1000) / 300), range({count}))"

_UNTRAINABLE_REASON = "if(state = 'untrainable', 'no_logprobs', NULL)"

TABLES: dict[str, tuple[dict[str, str], str]] = {
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
            "trainable": "state != 'untrainable'",
            "untrainable_reason": _UNTRAINABLE_REASON,
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
            "untrainable_reason": _UNTRAINABLE_REASON,
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
            "trainable": "state != 'untrainable'",
            "untrainable_reason": _UNTRAINABLE_REASON,
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
            "first_seen_ms": "toUnixTimestamp64Milli(at)",
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
            "run_id": "if(drop.1 IN ('no_signal', 'stale'), 'main', '')",
            "unit": "drop.2",
            "unit_id": "drop.3",
            "reason": "drop.1",
            "stage": "drop.4",
            "trajectories": "multiIf(drop.2 = 'group', 8, drop.2 = 'trajectory', 1, 0)",
            "detail": "drop.1",
            "dropped_at": "at",
            "kafka_offset": "i * 4 + length(drop.2) % 4",
        },
        "ARRAY JOIN arrayConcat("
        "if(state = 'no_signal' AND i % 8 = 0, [('no_signal', 'group', group, 'curriculum')], []), "
        "if(state = 'untrainable', [('untrainable', 'trajectory', trajectory, 'scoring')], []), "
        "if(state = 'stale', [('stale', 'trajectory', trajectory, 'trainer')], []), "
        "if(i % 1000 = 7, [('late_event', 'event', concat(episode, '3'), 'assembly'), "
        "('missing_events', 'episode', concat(episode, 'lost'), 'assembly')], [])) AS drop",
    ),
    "drop_trajectories": (
        {
            "run_id": "if(state = 'untrainable', '', 'main')",
            "trajectory_id": "trajectory",
            "reason": "state",
            "stage": "multiIf(state = 'no_signal', 'curriculum', state = 'stale', 'trainer', 'scoring')",
            "unit": "if(state = 'no_signal', 'group', 'trajectory')",
            "unit_id": "if(state = 'no_signal', group, trajectory)",
            "dropped_at": "at",
            "kafka_offset": "i",
        },
        "WHERE state IN ('untrainable', 'no_signal', 'stale')",
    ),
    "tool_calls": (
        {
            "episode_id": "episode",
            "event_id": "concat(episode, 'tool')",
            "writer_id": "'w1'",
            "sequence": "9",
            "name": "if(i % 4 = 0, 'search', 'look')",
            "arguments": "'{}'",
            "result": "if(i % 20 = 0, NULL, 'found')",
            "error": "if(i % 20 = 0, 'timeout', NULL)",
            "latency_ms": "i % 300",
            "episode_started_at": "at",
            "occurred_at": "at + toIntervalMillisecond(150)",
            "kafka_offset": "i * 6 + 2",
        },
        "WHERE i % 2 = 0",
    ),
    "reward_revisions": (
        {
            "trajectory_id": "trajectory",
            "episode_id": "episode",
            "group_hint": "concat('example:', task, toString(g))",
            "revision": "1",
            "rewards": "1",
            "excluded": "false",
            "revised_at": "at + toIntervalSecond(60)",
            "kafka_offset": "i",
        },
        "WHERE i % 100 = 3",
    ),
    "curriculum_states": (
        {
            "run_id": "'main'",
            "window": "intDiv(s - 1, 4)",
            "mode": "'harness'",
            "percentile": "0.5",
            "seen_group_ids": "groupUniqArray(group)",
            "admitted_group_ids": "groupUniqArrayIf(group, g % 10 >= 3)",
            "rejected_group_ids": "groupUniqArrayIf(group, g % 10 < 3)",
            "reward_mean": "avg(reward)",
            "closed_at": "max(at)",
            "kafka_offset": "intDiv(s - 1, 4)",
        },
        "WHERE i < {pending} GROUP BY intDiv(s - 1, 4)",
    ),
    "dead_letters": (
        {
            "stage": "['sink', 'assembly'][i % 2 + 1]",
            "topic": "'rollbus.episode-events'",
            "partition": "0",
            "offset": "i",
            "timestamp": "at",
            "value": "'junk'",
            "error_class": "'UndecodableError'",
            "message": "'not a record'",
            "kafka_offset": "i",
        },
        "WHERE i % 1000 < 2",
    ),
    "sink_ranges": (
        {
            "from_offset": "min(i) * 6",
            "last_offset": "max(i) * 6 + 5",
            "next_offset": "max(i) * 6 + 6",
            "end_offset": "max(i) * 6 + 6",
            "records": "count() * 6",
            "stored": "count() * 6",
            "rows": "count() * 10",
        },
        "GROUP BY s",
    ),
}
