-- name: before_and_after
-- Rewards before a policy version and from it on, by task, with a rank test: p is small where they hardly differ by chance.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param model String = '' : only this model; empty means all
-- param version Int64 = 1 : first version that counts as after
SELECT
    task,
    countIf(NOT after) AS before_count,
    countIf(after) AS after_count,
    avgIf(reward, NOT after) AS before_mean,
    avgIf(reward, after) AS after_mean,
    mannWhitneyUTest('two-sided')(reward, after).2 AS p
FROM
(
    SELECT task, assumeNotNull(value) AS reward, assumeNotNull(max_policy_version) >= {version:Int64} AS after
    FROM latest_scores(namespace = {namespace:String})
    WHERE value IS NOT NULL AND max_policy_version IS NOT NULL
        AND ({model:String} = '' OR model = {model:String})
)
GROUP BY task
ORDER BY task
