-- From feedback to gradient: each reward that was in force in the score that a trajectory was trained by, the step that it moved, and how long both took.
SELECT
    said.namespace AS namespace,
    said.run_id AS run_id,
    said.trajectory_id AS trajectory_id,
    said.episode_id AS episode_id,
    ends.task AS task,
    ends.labels AS labels,
    said.reward AS reward,
    said.amount AS value,
    said.speaker AS source,
    said.author AS principal,
    ends.ended AS ended_at,
    if(reported.at = toDateTime64(0, 3, 'UTC'), said.taken_at, reported.at) AS reported_at,
    said.step AS step,
    said.trained_at AS trained_at,
    said.version AS policy_version,
    said.advantage AS advantage,
    said.sampled_tokens AS sampled_tokens,
    date_diff('ms', ends.ended, reported_at) / 1000 AS feedback_lag_s,
    date_diff('ms', reported_at, trained_at) / 1000 AS training_lag_s
FROM ${database}.trained_reports AS said
LEFT JOIN
(
    SELECT namespace, trajectory_key, toString(task) AS task, labels, ended_at AS ended FROM ${database}.trajectories FINAL
) AS ends ON ends.namespace = said.namespace AND ends.trajectory_key = said.trajectory_key
LEFT JOIN
(
    SELECT namespace, event_id, max(occurred_at) AS at FROM ${database}.rewards GROUP BY namespace, event_id
) AS reported ON reported.namespace = said.namespace AND reported.event_id = said.event_id
