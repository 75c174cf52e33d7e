-- Who moved the model: each trained trajectory with who recorded it, who reported on it in time, and its share of the absolute advantage of its step.
SELECT
    members.namespace AS namespace,
    members.run_id AS run_id,
    members.step AS step,
    members.trajectory_id AS trajectory_id,
    recorded.principal AS recorded_by,
    recorded.labels AS labels,
    reported.principals AS reported_by,
    reported.sources AS sources,
    reported.reports AS reports,
    members.advantage AS advantage,
    if(members.of_step = 0, 0, abs(ifNull(members.advantage, 0)) / members.of_step) AS share_of_step
FROM
(
    SELECT
        namespace, run_id, step, group_id, trajectory_id, trajectory_key, advantage,
        sum(abs(ifNull(advantage, 0))) OVER (PARTITION BY namespace, run_id, step) AS of_step
    FROM ${database}.step_members FINAL
    WHERE fate = 'trained'
) AS members
LEFT JOIN
(
    SELECT namespace, trajectory_key, principal, labels FROM ${database}.trajectories FINAL
) AS recorded ON recorded.namespace = members.namespace AND recorded.trajectory_key = members.trajectory_key
LEFT JOIN
(
    SELECT
        namespace, run_id, step, group_id, trajectory_key,
        groupUniqArray(author) AS principals,
        groupUniqArray(speaker) AS sources,
        uniqExact(event_id) AS reports
    FROM
    (
        SELECT
            trained.namespace AS namespace, trained.run_id AS run_id, trained.step AS step,
            trained.group_id AS group_id, trained.trajectory_key AS trajectory_key, written.event_id AS event_id,
            toString(any(written.principal)) AS author,
            toString(any(written.source)) AS speaker
        FROM ${database}.trajectory_rewards AS written
        INNER JOIN
        (
            SELECT namespace, run_id, step, group_id, trajectory_id, trajectory_key
            FROM ${database}.step_members FINAL
            WHERE fate = 'trained'
        ) AS trained ON trained.namespace = written.namespace AND trained.trajectory_id = written.trajectory_id
        LEFT JOIN
        (
            SELECT namespace, run_id, group_id, trajectory_id, toNullable(score_revision) AS revision
            FROM ${database}.group_members FINAL
        ) AS scored
            ON scored.namespace = trained.namespace AND scored.run_id = trained.run_id
            AND scored.group_id = trained.group_id AND scored.trajectory_id = trained.trajectory_id
        GROUP BY namespace, run_id, step, group_id, trajectory_key, event_id
        HAVING argMaxIf(written.in_force, written.revision,
            written.revision <= ifNull(scored.revision, 9223372036854775807))
    )
    GROUP BY namespace, run_id, step, group_id, trajectory_key
) AS reported
    ON reported.namespace = members.namespace AND reported.run_id = members.run_id AND reported.step = members.step
    AND reported.group_id = members.group_id AND reported.trajectory_key = members.trajectory_key
