-- name: step_metrics
-- Each completed step with its optimizer's report; mismatch_kl measures how far trainer and sampler differ.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
SELECT
    step,
    base_version,
    policy_version,
    trained,
    dropped,
    if(mapContains(metrics, 'loss'), metrics['loss'], NULL) AS loss,
    if(mapContains(metrics, 'reward_mean'), metrics['reward_mean'], NULL) AS reward_mean,
    if(mapContains(metrics, 'entropy'), metrics['entropy'], NULL) AS entropy,
    if(mapContains(metrics, 'mismatch_kl'), metrics['mismatch_kl'], NULL) AS mismatch_kl,
    if(mapContains(metrics, 'clip_fraction'), metrics['clip_fraction'], NULL) AS clip_fraction,
    if(mapContains(metrics, 'grad_norm'), metrics['grad_norm'], NULL) AS grad_norm,
    if(mapContains(metrics, 'lag_mean'), metrics['lag_mean'], NULL) AS lag_mean,
    date_diff('ms', assumeNotNull(started_at), assumeNotNull(ended_at)) AS duration_ms,
    metrics
FROM steps FINAL
WHERE namespace = {namespace:String} AND run_id = {run:String} AND state = 'completed'
ORDER BY step
