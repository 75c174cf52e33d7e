-- name: feedback_delay
-- How long after the start of its episode a reward came, by task and reward, and how many came after the assembly.
-- param namespace String = 'rollbus.' : prefix of the log's topics
SELECT
    episodes.task AS task,
    rewards.name AS reward,
    count() AS reports,
    quantileExact(0.5)(date_diff('ms', episodes.started_at, rewards.occurred_at)) AS p50_ms,
    quantileExact(0.99)(date_diff('ms', episodes.started_at, rewards.occurred_at)) AS p99_ms,
    countIf(assembled.trajectory_id != '' AND rewards.occurred_at > assembled.ended_at) AS after_the_end,
    countIf(revisions.trajectory_id != '') AS revised_a_trajectory
FROM
(
    SELECT * FROM rewards FINAL WHERE namespace = {namespace:String} AND episode_id != ''
) AS rewards
INNER JOIN
(
    SELECT episode_id, task, started_at FROM episodes FINAL WHERE namespace = {namespace:String}
) AS episodes ON episodes.episode_id = rewards.episode_id
LEFT JOIN
(
    SELECT episode_id, trajectory_id, ended_at FROM trajectories FINAL WHERE namespace = {namespace:String}
) AS assembled ON assembled.episode_id = rewards.episode_id
LEFT JOIN
(
    SELECT DISTINCT trajectory_id FROM reward_revisions WHERE namespace = {namespace:String}
) AS revisions ON revisions.trajectory_id = assembled.trajectory_id
GROUP BY task, reward
ORDER BY task, reward
