-- From feedback to gradient: each reward in force of each trajectory that was trained, the step that it moved, and how long both took.
SELECT
    members.namespace AS namespace,
    members.run_id AS run_id,
    members.trajectory_id AS trajectory_id,
    said.episode_id AS episode_id,
    ends.task AS task,
    ends.labels AS labels,
    said.reward AS reward,
    said.amount AS value,
    said.speaker AS source,
    said.author AS principal,
    ends.ended AS ended_at,
    if(reported.at = toDateTime64(0, 3, 'UTC'), said.taken_at, reported.at) AS reported_at,
    members.step AS step,
    members.at AS trained_at,
    members.version AS policy_version,
    members.advantage AS advantage,
    members.sampled_tokens AS sampled_tokens,
    date_diff('ms', ends.ended, reported_at) / 1000 AS feedback_lag_s,
    date_diff('ms', reported_at, trained_at) / 1000 AS training_lag_s
FROM
(
    SELECT
        namespace, toString(run_id) AS run_id, trajectory_id, trajectory_key, step, ended_at AS at,
        policy_version AS version, advantage, sampled_tokens
    FROM ${database}.step_members FINAL
    WHERE fate = 'trained'
) AS members
INNER JOIN
(
    SELECT
        namespace,
        cityHash64(trajectory_id) AS trajectory_key,
        event_id,
        any(episode_id) AS episode_id,
        argMax(toString(name), revision) AS reward,
        argMax(value, revision) AS amount,
        argMax(toString(source), revision) AS speaker,
        argMax(toString(principal), revision) AS author,
        min(revised_at) AS taken_at
    FROM ${database}.trajectory_rewards FINAL
    GROUP BY namespace, trajectory_id, event_id
    HAVING argMax(in_force, revision)
) AS said ON said.namespace = members.namespace AND said.trajectory_key = members.trajectory_key
LEFT JOIN
(
    SELECT namespace, trajectory_key, toString(task) AS task, labels, ended_at AS ended FROM ${database}.trajectories FINAL
) AS ends ON ends.namespace = members.namespace AND ends.trajectory_key = members.trajectory_key
LEFT JOIN
(
    SELECT namespace, event_id, max(occurred_at) AS at FROM ${database}.rewards GROUP BY namespace, event_id
) AS reported ON reported.namespace = said.namespace AND reported.event_id = said.event_id
