-- name: thin_rewards
-- The rewards of a model's versions for a chart: at most so many points, each over as many versions as that takes.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param model String = '' : only this model; empty means all
-- param points UInt32 = 400 : most points
WITH
    (
        SELECT (min(max_policy_version), intDiv(max(max_policy_version) - min(max_policy_version), {points:UInt32}) + 1)
        FROM scores
        WHERE namespace = {namespace:String} AND ({model:String} = '' OR model = {model:String})
    ) AS range,
    means AS
    (
        SELECT
            assumeNotNull(min(max_policy_version)) AS policy_version,
            assumeNotNull(max(max_policy_version)) AS last_version,
            count() AS trajectories,
            avg(assumeNotNull(value)) AS reward_mean,
            reward_mean - 1.96 * stddevSampStable(assumeNotNull(value)) / sqrt(count()) AS reward_low,
            reward_mean + 1.96 * stddevSampStable(assumeNotNull(value)) / sqrt(count()) AS reward_high,
            quantileExact(0.1)(assumeNotNull(value)) AS p10,
            quantileExact(0.9)(assumeNotNull(value)) AS p90
        FROM latest_scores(namespace = {namespace:String})
        WHERE value IS NOT NULL AND max_policy_version IS NOT NULL
            AND ({model:String} = '' OR model = {model:String})
        GROUP BY intDiv(assumeNotNull(max_policy_version) - assumeNotNull(range.1), assumeNotNull(range.2))
    )
SELECT
    * EXCEPT before,
    arrayFold((average, mean) -> 0.7 * average + 0.3 * mean, arraySlice(before, -64), arraySlice(before, -64)[1]) AS smoothed
FROM
(
    SELECT *, groupArray(reward_mean) OVER (ORDER BY policy_version ROWS BETWEEN 64 PRECEDING AND CURRENT ROW) AS before
    FROM means
)
ORDER BY policy_version
