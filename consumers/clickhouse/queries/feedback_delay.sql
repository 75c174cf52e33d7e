-- name: feedback_delay
-- How long after the start of its episode a reward came, by task and reward, and how many came after the episode's end.
-- The task is empty for episodes that are not assembled.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- chart p50_ms
SELECT
    assembled.task AS task,
    rewards.name AS reward,
    count() AS reports,
    quantileExact(0.5)(date_diff('ms', rewards.episode_started_at, rewards.occurred_at)) AS p50_ms,
    quantileExact(0.99)(date_diff('ms', rewards.episode_started_at, rewards.occurred_at)) AS p99_ms,
    countIf(assembled.task != '' AND rewards.occurred_at > assembled.ended_at) AS after_the_end,
    countIf(rewards.episode IN
    (
        SELECT cityHash64(episode_id) FROM reward_revisions WHERE namespace = {namespace:String}
    )) AS revised_a_trajectory
FROM
(
    SELECT cityHash64(episode_id) AS episode, name, episode_started_at, occurred_at
    FROM rewards FINAL
    WHERE namespace = {namespace:String} AND episode_id != ''
) AS rewards
LEFT JOIN
(
    SELECT cityHash64(episode_id) AS episode, task, ended_at FROM trajectories WHERE namespace = {namespace:String}
    LIMIT 1 BY episode
) AS assembled ON assembled.episode = rewards.episode
GROUP BY task, reward
ORDER BY task, reward
