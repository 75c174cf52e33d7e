-- name: policy_history
-- The life of each version: who served a model since when, why, and the reward that the decision was made on.
-- effect is canary − serving, with an interval that holds however often it is looked at.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param model String = '' : only this model; empty means all
-- param version Int64 = -1 : only decisions about this version; −1 means all
-- param limit UInt32 = 10000 : most decisions of a model, the newest ones
SELECT
    model,
    number,
    action,
    version,
    serving,
    canary,
    share,
    frozen,
    reason,
    detail,
    if(mapContains(numbers, 'reward.effect'), numbers['reward.effect'], NULL) AS effect,
    if(mapContains(numbers, 'reward.low'), numbers['reward.low'], NULL) AS low,
    if(mapContains(numbers, 'reward.high'), numbers['reward.high'], NULL) AS high,
    toInt64(numbers['reward.canary_episodes']) AS canary_episodes,
    toInt64(numbers['reward.serving_episodes']) AS serving_episodes,
    decided_at
FROM
(
    SELECT * FROM policy_decisions FINAL
    WHERE namespace = {namespace:String}
        AND ({model:String} = '' OR model = {model:String})
        AND ({version:Int64} = -1 OR version = {version:Int64})
    ORDER BY number DESC
    LIMIT {limit:UInt32} BY model
)
ORDER BY model, number
