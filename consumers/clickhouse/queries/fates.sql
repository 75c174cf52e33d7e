-- name: fates
-- Trajectories of a run, each with its own fate: trained in step n, dropped with its reason, or pending. A replay that begins
-- after assembly has no time at which they ended.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
-- param fate String = '' : only trained, dropped or pending; empty means all
-- param reason String = '' : only dropped with this reason; empty means all
-- param limit UInt32 = 1000 : most rows; of more rows some are left out
WITH
    -- an array, as ClickHouse works a scalar out once and a table at each place that names it
    (
        SELECT groupArray((trajectory_key, trajectory_id, fate, step, stage, reason))
        FROM
        (
            SELECT trajectory_key, trajectory_id, fate, step, stage, reason
            FROM trajectory_fates(namespace = {namespace:String}, run = {run:String})
            WHERE ({fate:String} = '' OR fate = {fate:String}) AND ({reason:String} = '' OR reason = {reason:String})
            ORDER BY trajectory_key
            LIMIT {limit:UInt32}
        )
    ) AS chosen
SELECT
    fates.row.2 AS trajectory_id,
    found.episode_id AS episode_id,
    found.task AS task,
    fates.row.3 AS fate,
    fates.row.4 AS step,
    fates.row.5 AS stage,
    fates.row.6 AS reason,
    found.closed_by AS closed_by,
    found.ended_at AS ended_at
FROM (SELECT arrayJoin(chosen) AS row) AS fates
LEFT JOIN
(
    SELECT trajectory_key, max(episode) AS episode_id, max(of_task) AS task, max(closing) AS closed_by, max(ended) AS ended_at
    FROM
    (
        SELECT trajectory_key, episode_id AS episode, toString(task) AS of_task, toString(closed_by) AS closing,
            toNullable(ended_at) AS ended
        FROM trajectories FINAL
        WHERE namespace = {namespace:String} AND trajectory_key IN (SELECT arrayJoin(chosen).1)
        UNION ALL
        SELECT trajectory_key, episode_id, toString(task), toString(closed_by), NULL
        FROM scores
        WHERE namespace = {namespace:String} AND trajectory_key IN (SELECT arrayJoin(chosen).1)
        UNION ALL
        SELECT trajectory_key, episode_id, '', '', NULL
        FROM group_members
        WHERE namespace = {namespace:String} AND run_id = {run:String}
            AND trajectory_key IN (SELECT arrayJoin(chosen).1)
    )
    GROUP BY trajectory_key
) AS found ON found.trajectory_key = fates.row.1
ORDER BY ended_at, episode_id, trajectory_id
