-- name: thin_steps
-- The metrics of a run's steps for a chart: at most so many points, each with the mean and the ends of its steps.
-- What is no finite number is in none of them: it is counted, with the first step that has it.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
-- param points UInt32 = 400 : most points of a metric
WITH
    (
        SELECT (min(step), intDiv(max(step) - min(step), {points:UInt32}) + 1)
        FROM steps
        WHERE namespace = {namespace:String} AND run_id = {run:String} AND state = 'completed'
    ) AS range
SELECT
    metric,
    min(each.step) AS step,
    max(each.step) AS last_step,
    countIf(NOT isFinite(value)) AS broken,
    if(broken > 0, toNullable(minIf(each.step, NOT isFinite(value))), NULL) AS first_broken,
    avgOrNullIf(value, isFinite(value)) AS mean,
    minOrNullIf(value, isFinite(value)) AS low,
    maxOrNullIf(value, isFinite(value)) AS high
FROM
(
    SELECT step, metrics FROM steps FINAL
    WHERE namespace = {namespace:String} AND run_id = {run:String} AND state = 'completed'
) AS each
ARRAY JOIN
    arrayFilter(
        name -> mapContains(metrics, name),
        ['loss', 'reference_kl', 'entropy', 'clip_fraction', 'grad_norm', 'mismatch_kl']
    ) AS metric,
    arrayMap(
        name -> metrics[name],
        arrayFilter(
            name -> mapContains(metrics, name),
            ['loss', 'reference_kl', 'entropy', 'clip_fraction', 'grad_norm', 'mismatch_kl']
        )
    ) AS value
GROUP BY metric, intDiv(each.step - range.1, range.2)
ORDER BY metric, step
