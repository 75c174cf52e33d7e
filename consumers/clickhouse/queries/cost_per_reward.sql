-- name: cost_per_reward
-- The cost of reward: tokens sampled by each policy version, their price so far, and the price of each point gained.
-- Trajectories without a reward cost as much as the others.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param model String = '' : only this model; empty means all
-- param price Float64 = 1.0 : of a million sampled tokens
WITH by_version AS
(
    SELECT
        max_policy_version AS policy_version,
        count() AS trajectories,
        sum(sampled_tokens) AS sampled_tokens,
        avg(value) AS reward_mean
    FROM latest_scores(namespace = {namespace:String})
    WHERE max_policy_version IS NOT NULL
        AND ({model:String} = '' OR model = {model:String})
    GROUP BY policy_version
)
SELECT
    policy_version,
    trajectories,
    sampled_tokens,
    reward_mean,
    sum(sampled_tokens) OVER so_far * {price:Float64} / 1e6 AS cost_so_far,
    reward_mean - first_value(reward_mean) OVER so_far AS gained,
    if(gained > 0, cost_so_far / gained, NULL) AS cost_per_point
FROM by_version
WINDOW so_far AS (ORDER BY policy_version ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
ORDER BY policy_version
