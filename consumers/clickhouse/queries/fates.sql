-- name: fates
-- Each trajectory of a run with its own fate: trained in step n, dropped with its reason, or pending.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
-- param fate String = '' : only trained, dropped or pending; empty means all
-- param limit UInt32 = 1000 : most rows
SELECT
    fates.trajectory_id AS trajectory_id,
    trajectories.episode_id AS episode_id,
    trajectories.task AS task,
    fates.fate AS fate,
    fates.step AS step,
    fates.stage AS stage,
    fates.reason AS reason,
    trajectories.ended_at AS ended_at
FROM trajectory_fates(namespace = {namespace:String}, run = {run:String}) AS fates
LEFT JOIN
(
    SELECT trajectory_id, episode_id, task, ended_at FROM trajectories FINAL WHERE namespace = {namespace:String}
) AS trajectories ON trajectories.trajectory_id = fates.trajectory_id
WHERE {fate:String} = '' OR fates.fate = {fate:String}
ORDER BY ended_at, episode_id, trajectory_id
LIMIT {limit:UInt32}
