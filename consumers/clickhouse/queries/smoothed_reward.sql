-- name: smoothed_reward
-- Mean reward of each policy version, and its exponential moving average over versions.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param model String = '' : only this model; empty means all
-- param task String = '' : only this task; empty means all
-- param weight Float64 = 0.3 : of the newest version in the average, above 0 and at most 1
-- chart smoothed
WITH means AS
(
    SELECT max_policy_version AS policy_version, avg(value) AS reward_mean, count() AS trajectories
    FROM latest_scores(namespace = {namespace:String})
    WHERE value IS NOT NULL AND max_policy_version IS NOT NULL
        AND ({model:String} = '' OR model = {model:String}) AND ({task:String} = '' OR task = {task:String})
    GROUP BY policy_version
)
SELECT
    policy_version,
    trajectories,
    reward_mean,
    arrayFold(
        (average, mean) -> (1 - {weight:Float64}) * average + {weight:Float64} * mean,
        arraySlice(means_before, -64),
        arraySlice(means_before, -64)[1]
    ) AS smoothed
FROM
(
    SELECT
        *,
        groupArray(assumeNotNull(reward_mean)) OVER (
            ORDER BY policy_version ROWS BETWEEN 64 PRECEDING AND CURRENT ROW
        ) AS means_before
    FROM means
)
ORDER BY policy_version
