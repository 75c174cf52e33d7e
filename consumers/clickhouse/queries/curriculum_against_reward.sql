-- name: curriculum_against_reward
-- Each curriculum window with the newest step before it closed: percentile, groups admitted, mean reward, version.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
SELECT
    windows.window AS window,
    windows.mode AS mode,
    windows.percentile AS percentile,
    length(windows.seen_group_ids) AS groups,
    length(windows.admitted_group_ids) AS admitted,
    windows.reward_mean AS reward_mean,
    steps.step AS step,
    steps.policy_version AS policy_version,
    windows.closed_at AS closed_at
FROM
(
    SELECT *, 0 AS one FROM curriculum_states FINAL WHERE namespace = {namespace:String} AND run_id = {run:String}
) AS windows
ASOF LEFT JOIN
(
    SELECT step, policy_version, assumeNotNull(ended_at) AS ended_at, 0 AS one
    FROM steps FINAL
    WHERE namespace = {namespace:String} AND run_id = {run:String} AND state = 'completed'
) AS steps ON steps.one = windows.one AND steps.ended_at <= windows.closed_at
ORDER BY window
