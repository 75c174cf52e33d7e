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
FROM
(
    SELECT
        members.namespace AS namespace, members.run_id AS run_id, members.step AS step,
        members.group_id AS group_id, members.trajectory_key AS trajectory_key, written.event_id AS event_id,
        any(members.trajectory_id) AS trajectory_id,
        any(members.at) AS trained_at,
        any(members.version) AS version,
        any(members.advantage) AS advantage,
        any(members.sampled_tokens) AS sampled_tokens,
        any(written.episode_id) AS episode_id,
        toString(any(written.name)) AS reward,
        argMaxIf(written.value, written.revision,
            written.revision <= ifNull(scored.revision, 9223372036854775807)) AS amount,
        toString(any(written.source)) AS speaker,
        toString(any(written.principal)) AS author,
        min(written.revised_at) AS taken_at
    FROM ${database}.trajectory_rewards AS written
    INNER JOIN
    (
        SELECT
            namespace, toString(run_id) AS run_id, group_id, trajectory_id, trajectory_key, step, ended_at AS at,
            policy_version AS version, advantage, sampled_tokens
        FROM ${database}.step_members FINAL
        WHERE fate = 'trained'
    ) AS members ON members.namespace = written.namespace AND members.trajectory_id = written.trajectory_id
    LEFT JOIN
    (
        SELECT namespace, toString(run_id) AS run_id, group_id, trajectory_id, toNullable(score_revision) AS revision
        FROM ${database}.group_members FINAL
    ) AS scored
        ON scored.namespace = members.namespace AND scored.run_id = members.run_id
        AND scored.group_id = members.group_id AND scored.trajectory_id = members.trajectory_id
    GROUP BY namespace, run_id, step, group_id, trajectory_key, event_id
    HAVING argMaxIf(written.in_force, written.revision,
        written.revision <= ifNull(scored.revision, 9223372036854775807))
) AS said
LEFT JOIN
(
    SELECT namespace, trajectory_key, toString(task) AS task, labels, ended_at AS ended FROM ${database}.trajectories FINAL
) AS ends ON ends.namespace = said.namespace AND ends.trajectory_key = said.trajectory_key
LEFT JOIN
(
    SELECT namespace, event_id, max(occurred_at) AS at FROM ${database}.rewards GROUP BY namespace, event_id
) AS reported ON reported.namespace = said.namespace AND reported.event_id = said.event_id
