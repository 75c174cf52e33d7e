-- name: fates
-- Trajectories of a run, each with its own fate: trained in step n, dropped with its reason, or pending.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
-- param fate String = '' : only trained, dropped or pending; empty means all
-- param reason String = '' : only dropped with this reason; empty means all
-- param limit UInt32 = 1000 : most rows; of more rows some are left out
WITH chosen AS
(
    SELECT trajectory_key, fate, step, stage, reason
    FROM trajectory_fates(namespace = {namespace:String}, run = {run:String})
    WHERE ({fate:String} = '' OR fate = {fate:String}) AND ({reason:String} = '' OR reason = {reason:String})
    ORDER BY trajectory_key
    LIMIT {limit:UInt32}
)
SELECT
    found.trajectory_id AS trajectory_id,
    found.episode_id AS episode_id,
    found.task AS task,
    chosen.fate AS fate,
    chosen.step AS step,
    chosen.stage AS stage,
    chosen.reason AS reason,
    found.closed_by AS closed_by,
    found.ended_at AS ended_at
FROM chosen
LEFT JOIN
(
    SELECT trajectory_key, trajectory_id, episode_id, task, closed_by, ended_at
    FROM trajectories FINAL
    WHERE namespace = {namespace:String} AND trajectory_key IN (SELECT trajectory_key FROM chosen)
) AS found ON found.trajectory_key = chosen.trajectory_key
ORDER BY ended_at, episode_id, trajectory_id
