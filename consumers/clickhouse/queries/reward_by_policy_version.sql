-- name: reward_by_policy_version
-- Mean reward of the trajectories that each policy version sampled, with 95 % interval and quantiles.
-- A trajectory counts for the newest version that sampled any of its turns; the newest revision of its score counts.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param model String = '' : only this model; empty means all
-- param task String = '' : only this task; empty means all
SELECT
    assumeNotNull(max_policy_version) AS policy_version,
    count() AS trajectories,
    avg(assumeNotNull(value)) AS reward_mean,
    if(count() > 1, reward_mean - 1.96 * stddevSampStable(assumeNotNull(value)) / sqrt(count()), NULL) AS reward_low,
    if(count() > 1, reward_mean + 1.96 * stddevSampStable(assumeNotNull(value)) / sqrt(count()), NULL) AS reward_high,
    quantileExact(0.1)(assumeNotNull(value)) AS p10,
    quantileExact(0.5)(assumeNotNull(value)) AS p50,
    quantileExact(0.9)(assumeNotNull(value)) AS p90
FROM latest_scores(namespace = {namespace:String})
WHERE value IS NOT NULL AND max_policy_version IS NOT NULL
    AND ({model:String} = '' OR model = {model:String})
    AND ({task:String} = '' OR task = {task:String})
GROUP BY policy_version
ORDER BY policy_version
