-- name: newest_steps
-- The newest completed steps of a run, or one step, with what each did; how many there are is in every row.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
-- param step Int64 = -1 : only this step; −1 means the newest
-- param limit UInt32 = 200 : most rows
SELECT
    step,
    base_version,
    policy_version,
    trained,
    dropped,
    if(mapContains(metrics, 'loss'), metrics['loss'], NULL) AS loss,
    if(mapContains(metrics, 'entropy'), metrics['entropy'], NULL) AS entropy,
    if(mapContains(metrics, 'clip_fraction'), metrics['clip_fraction'], NULL) AS clip_fraction,
    if(mapContains(metrics, 'grad_norm'), metrics['grad_norm'], NULL) AS grad_norm,
    arraySort(arrayFilter(name -> NOT isFinite(metrics[name]), mapKeys(metrics))) AS not_finite,
    date_diff('ms', assumeNotNull(started_at), assumeNotNull(ended_at)) AS duration_ms,
    (
        SELECT count() FROM steps FINAL
        WHERE namespace = {namespace:String} AND run_id = {run:String} AND state = 'completed'
    ) AS steps
FROM steps FINAL
WHERE namespace = {namespace:String} AND run_id = {run:String} AND state = 'completed'
    AND ({step:Int64} = -1 OR step = {step:Int64})
ORDER BY step DESC
LIMIT {limit:UInt32}
