-- name: length_against_reward
-- Do longer answers pay: mean length by task, the correlation of sampled tokens with reward, and the share cut off by a limit.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param model String = '' : only this model; empty means all
-- chart correlation
SELECT
    task,
    count() AS trajectories,
    avg(sampled_tokens) AS sampled_tokens_mean,
    quantile(0.9)(sampled_tokens) AS sampled_tokens_p90,
    if(isFinite(corrStable(toFloat64(sampled_tokens), assumeNotNull(value)) AS found), found, NULL) AS correlation,
    countIf(stop_reason IN ('max_tokens', 'max_turns')) / count() AS cut_off
FROM latest_scores(namespace = {namespace:String})
WHERE value IS NOT NULL AND ({model:String} = '' OR model = {model:String})
GROUP BY task
ORDER BY task
