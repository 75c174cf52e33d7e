-- name: reward_by_policy_version
-- Mean reward of the trajectories that each policy version sampled, with 95 % interval and quantiles.
-- A trajectory counts for the newest version that sampled any of its turns; the newest revision of its score counts.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param model String = '' : only this model; empty means all
-- param task String = '' : only this task; empty means all
WITH latest AS
(
    SELECT
        trajectory_id,
        argMax(value, revision) AS reward,
        argMax(max_policy_version, revision) AS policy_version
    FROM scores FINAL
    WHERE namespace = {namespace:String}
        AND ({model:String} = '' OR model = {model:String})
        AND ({task:String} = '' OR task = {task:String})
    GROUP BY trajectory_id
)
SELECT
    policy_version,
    count() AS trajectories,
    avg(reward) AS reward_mean,
    reward_mean - 1.96 * stddevSamp(reward) / sqrt(count()) AS reward_low,
    reward_mean + 1.96 * stddevSamp(reward) / sqrt(count()) AS reward_high,
    quantileExact(0.1)(reward) AS p10,
    quantileExact(0.5)(reward) AS p50,
    quantileExact(0.9)(reward) AS p90
FROM latest
WHERE reward IS NOT NULL AND policy_version IS NOT NULL
GROUP BY policy_version
ORDER BY policy_version
