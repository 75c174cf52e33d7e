-- name: guards_by_policy_version
-- Each measure of the episodes of each policy version: what parts from the others while the reward rises.
-- A trajectory counts for the newest version that sampled any of its turns. known says how many of its trajectories have it.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param model String = '' : only this model; empty means all
-- param component String = '' : only this measure; empty means all
SELECT
    measure.1 AS component,
    assumeNotNull(max_policy_version) AS policy_version,
    count() AS known,
    avg(measure.2) AS mean,
    if(count() > 1, stddevSampStable(measure.2) / sqrt(count()), NULL) AS standard_error,
    quantileExact(0.1)(measure.2) AS p10,
    quantileExact(0.9)(measure.2) AS p90
FROM latest_scores(namespace = {namespace:String})
ARRAY JOIN arrayConcat(
    CAST(components, 'Array(Tuple(String, Float64))'),
    [('tokens', toFloat64(sampled_tokens))],
    if(value IS NULL, [], [('reward', assumeNotNull(value))])
) AS measure
WHERE max_policy_version IS NOT NULL
    AND ({model:String} = '' OR model = {model:String})
    AND ({component:String} = '' OR component = {component:String})
GROUP BY component, policy_version
ORDER BY component, policy_version
