-- name: guards_by_policy_version
-- Each measure of the episodes of each policy version: what parts from the others while the reward rises.
-- A trajectory counts for the newest version that sampled any of its turns. known says how many of its trajectories have it.
-- of tells the reward and the length of the whole score from components, which may have the same names.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param model String = '' : only this model; empty means all
-- param component String = '' : only this measure; empty means all
SELECT
    measure.1 AS component,
    measure.3 AS of,
    assumeNotNull(max_policy_version) AS policy_version,
    count() AS known,
    avg(measure.2) AS mean,
    if(count() > 1, stddevSampStable(measure.2) / sqrt(count()), NULL) AS standard_error,
    quantileExact(0.1)(measure.2) AS p10,
    quantileExact(0.9)(measure.2) AS p90
FROM latest_scores(namespace = {namespace:String})
ARRAY JOIN arrayConcat(
    arrayMap(pair -> (pair.1, pair.2, 'component'), CAST(components, 'Array(Tuple(String, Float64))')),
    [('tokens', toFloat64(sampled_tokens), 'score')],
    if(value IS NULL, [], [('reward', assumeNotNull(value), 'score')])
) AS measure
WHERE max_policy_version IS NOT NULL
    AND ({model:String} = '' OR model = {model:String})
    AND ({component:String} = '' OR component = {component:String})
GROUP BY component, of, policy_version
ORDER BY component, of, policy_version
