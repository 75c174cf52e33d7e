"""Five questions to ClickHouse that the demo ends with, from a policy's reward to the episodes behind one step."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Question:
    """A title for people and the SQL that answers it, for `{namespace}` and `{run}`."""

    title: str
    sql: str


REWARD_BY_VERSION = Question(
    "Reward by policy version (five versions to a row)",
    """
SELECT
    concat(toString(min(version)), '–', toString(max(version))) AS versions,
    count() AS episodes,
    round(avg(value), 3) AS reward,
    round(100 * avg(value = 1), 1) AS wins_percent,
    round(100 * avg(value < 0), 1) AS illegal_percent
FROM
(
    SELECT assumeNotNull(max_policy_version) AS version, assumeNotNull(value) AS value
    FROM scores FINAL
    WHERE namespace = {namespace:String} AND outcome = 'scored' AND max_policy_version IS NOT NULL
)
GROUP BY intDiv(version, 5)
ORDER BY min(version)
""",
)

FATE = Question(
    "The fate of every trajectory",
    """
SELECT fate, reason, count() AS trajectories
FROM
(
    SELECT
        t.trajectory_id AS trajectory_id,
        multiIf(m.trained > 0, 'trained', d.dropped > 0, 'dropped', 'pending') AS fate,
        if(m.trained > 0, '', d.reason) AS reason
    FROM (SELECT trajectory_id FROM trajectories FINAL WHERE namespace = {namespace:String}) AS t
    LEFT JOIN
    (
        SELECT trajectory_id, countIf(fate = 'trained') AS trained
        FROM step_members FINAL
        WHERE namespace = {namespace:String} AND run_id = {run:String}
        GROUP BY trajectory_id
    ) AS m ON m.trajectory_id = t.trajectory_id
    LEFT JOIN
    (
        SELECT trajectory_id, count() AS dropped, any(reason) AS reason
        FROM drop_trajectories FINAL
        WHERE namespace = {namespace:String} AND run_id IN ('', {run:String})
        GROUP BY trajectory_id
    ) AS d ON d.trajectory_id = t.trajectory_id
)
GROUP BY fate, reason
ORDER BY trajectories DESC
""",
)

STALENESS = Question(
    "Staleness: completed steps between sampling and training",
    """
SELECT
    lag,
    count() AS trajectories,
    round(100 * count() / sum(count()) OVER (), 1) AS percent
FROM step_members FINAL
WHERE namespace = {namespace:String} AND run_id = {run:String} AND fate = 'trained'
GROUP BY lag
ORDER BY lag
""",
)

WITHOUT_SIGNAL = Question(
    "Groups without signal: all attempts ended alike (grows as the policy becomes certain)",
    """
SELECT
    formatDateTime(toStartOfMinute(closed_at), '%H:%i') AS minute,
    count() AS groups,
    countIf(NOT has_signal) AS without_signal,
    round(100 * avg(NOT has_signal), 1) AS percent,
    round(avg(reward_mean), 3) AS reward
FROM groups FINAL
WHERE namespace = {namespace:String} AND run_id = {run:String}
GROUP BY toStartOfMinute(closed_at)
ORDER BY toStartOfMinute(closed_at)
""",
)

ONE_STEP = Question(
    "The last training step, traced to its episodes (8 of them)",
    """
SELECT
    m.step AS step,
    concat('@', toString(m.policy_version)) AS made,
    e.example_id AS opening,
    t.turns AS turns,
    concat('@', toString(t.min_policy_version), '–', toString(t.max_policy_version)) AS sampled_by,
    g.reward AS reward,
    round(m.advantage, 2) AS advantage,
    concat(toString(g.location_partition), ':', toString(g.location_offset)) AS in_topic,
    substring(t.trajectory_id, 1, 8) AS trajectory,
    substring(t.episode_id, 1, 8) AS episode
FROM step_members AS m FINAL
INNER JOIN (SELECT * FROM trajectories FINAL WHERE namespace = {namespace:String}) AS t
    ON t.trajectory_id = m.trajectory_id
INNER JOIN (SELECT * FROM episodes FINAL WHERE namespace = {namespace:String}) AS e ON e.episode_id = t.episode_id
INNER JOIN (SELECT * FROM group_members FINAL WHERE namespace = {namespace:String} AND run_id = {run:String}) AS g
    ON g.trajectory_id = m.trajectory_id
WHERE m.namespace = {namespace:String} AND m.run_id = {run:String} AND m.fate = 'trained'
    AND m.step = (SELECT max(step) FROM step_members WHERE namespace = {namespace:String} AND run_id = {run:String})
ORDER BY e.group_id, m.trajectory_id
LIMIT 8
""",
)

QUESTIONS = (REWARD_BY_VERSION, FATE, STALENESS, WITHOUT_SIGNAL, ONE_STEP)
