-- name: evaluation_history
-- Every measurement of a model on held-out tasks, one row per metric, with its 95 % interval if it has one.
-- Compare values only with the same set_hash: then the same tasks were played.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param model String = '' : only this model; empty means all
-- param name String = '' : only this evaluation; empty means all
-- chart value
SELECT
    model,
    name,
    policy_version,
    metric,
    metrics[metric] AS value,
    if(mapContains(metrics, concat(metric, '_low')), metrics[concat(metric, '_low')], NULL) AS low,
    if(mapContains(metrics, concat(metric, '_high')), metrics[concat(metric, '_high')], NULL) AS high,
    episodes,
    set_hash,
    evaluated_at
FROM (SELECT * FROM evaluations FINAL WHERE namespace = {namespace:String})
ARRAY JOIN arrayFilter(
    key -> NOT (endsWith(key, '_low') OR endsWith(key, '_high')),
    arrayMap(key -> toString(key), mapKeys(metrics))) AS metric
WHERE ({model:String} = '' OR model = {model:String}) AND ({name:String} = '' OR name = {name:String})
ORDER BY model, name, metric, policy_version, evaluated_at
