-- Who moved the model: each trained trajectory with who recorded it, who reported on it, and its share of the absolute advantage of its step.
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
        namespace, run_id, step, trajectory_id, trajectory_key, advantage,
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
        namespace,
        cityHash64(trajectory_id) AS trajectory_key,
        groupUniqArray(principal) AS principals,
        groupUniqArray(source) AS sources,
        uniqExact(event_id) AS reports
    FROM ${database}.trajectory_rewards FINAL
    WHERE in_force
    GROUP BY namespace, trajectory_id
) AS reported ON reported.namespace = members.namespace AND reported.trajectory_key = members.trajectory_key
