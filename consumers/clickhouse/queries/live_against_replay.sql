-- name: live_against_replay
-- A replay compared with live: how many trajectories and rewards are the same, differ, or are in one of the two only.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param replay String = '' : the replay's namespace, such as 'replay-better.rollbus.'; empty means the newest complete one
-- id replay = replay
WITH
    (
        SELECT argMax(toString(replay_namespace), started_at)
        FROM replays FINAL
        WHERE source_namespace = {namespace:String} AND state = 'complete'
    ) AS newest,
    if({replay:String} != '', {replay:String}, ifNull(newest, '')) AS chosen
SELECT
    chosen AS replay,
    count() AS trajectories,
    countIf(both AND same) AS same_reward,
    countIf(both AND NOT same) AS other_reward,
    countIf(NOT in_replay) AS only_live,
    countIf(NOT in_live) AS only_replay,
    avgIf(live_reward, both) AS live_reward_mean,
    avgIf(replay_reward, both) AS replay_reward_mean
FROM
(
    SELECT
        max(live) AS in_live,
        max(NOT live) AS in_replay,
        in_live AND in_replay AS both,
        maxIf(value, live) AS live_reward,
        maxIf(value, NOT live) AS replay_reward,
        ifNull(live_reward = replay_reward, (live_reward IS NULL) = (replay_reward IS NULL)) AS same
    FROM
    (
        SELECT trajectory_key, value, true AS live FROM latest_scores(namespace = {namespace:String})
        UNION ALL
        SELECT trajectory_key, value, false FROM latest_scores(namespace = chosen)
    )
    GROUP BY trajectory_key
)
WHERE chosen != ''
HAVING countIf(in_replay) > 0
