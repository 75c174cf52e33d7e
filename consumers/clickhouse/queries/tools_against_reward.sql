-- name: tools_against_reward
-- Each tool's calls, errors and latency, with the mean reward of episodes with and without its failure.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- chart error_rate
WITH
    calls AS
    (
        SELECT
            name,
            cityHash64(episode_id) AS episode,
            count() AS calls,
            countIf(error IS NOT NULL) AS errors,
            sum(latency_ms) AS took_ms,
            count(latency_ms) AS timed
        FROM tool_calls FINAL
        WHERE namespace = {namespace:String}
        GROUP BY name, episode
    ),
    rewards AS
    (
        SELECT cityHash64(episode_id) AS episode, argMax(tuple(value), (revision, -kafka_offset)).1 AS reward
        FROM scores
        WHERE namespace = {namespace:String}
        GROUP BY episode
    )
SELECT
    calls.name AS tool,
    sum(calls.calls) AS calls,
    sum(calls.errors) AS errors,
    errors / calls AS error_rate,
    sum(calls.took_ms) / nullIf(sum(calls.timed), 0) AS latency_ms_mean,
    avgIf(rewards.reward, calls.errors > 0) AS reward_with_error,
    avgIf(rewards.reward, calls.errors = 0) AS reward_without_error
FROM calls
LEFT JOIN rewards ON rewards.episode = calls.episode
GROUP BY tool
ORDER BY calls DESC, tool
