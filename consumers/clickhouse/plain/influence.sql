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
    FROM ${database}.trained_reports
    GROUP BY namespace, run_id, step, group_id, trajectory_key
) AS reported
    ON reported.namespace = members.namespace AND reported.run_id = members.run_id AND reported.step = members.step
    AND reported.group_id = members.group_id AND reported.trajectory_key = members.trajectory_key
