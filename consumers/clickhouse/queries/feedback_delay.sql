-- name: feedback_delay
-- How long after the start of its episode a reward came, by task and reward, and how many came after the episode's end.
-- The task is empty for episodes that are not assembled. A report from another process does not know when its episode
-- began, which is looked up then; without an answer it is in no quantile.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- chart p50_ms
WITH
    reported AS
    (
        SELECT event_id, cityHash64(episode_id) AS episode, name, occurred_at,
            nullIf(episode_started_at, toDateTime64(0, 3, 'UTC')) AS started_at
        FROM rewards FINAL
        WHERE namespace = {namespace:String} AND episode_id != '' AND NOT retracted
    )
SELECT
    assembled.task AS task,
    reported.name AS reward,
    count() AS reports,
    quantileExact(0.5)(date_diff('ms', ifNull(reported.started_at, began.at), reported.occurred_at)) AS p50_ms,
    quantileExact(0.99)(date_diff('ms', ifNull(reported.started_at, began.at), reported.occurred_at)) AS p99_ms,
    countIf(assembled.task != '' AND reported.occurred_at > assembled.ended_at) AS after_the_end,
    countIf(reported.event_id IN
    (
        SELECT event_id FROM trajectory_rewards WHERE namespace = {namespace:String}
        GROUP BY event_id
        HAVING min(revision) > 0
    )) AS revised_a_trajectory
FROM reported
LEFT JOIN
(
    SELECT cityHash64(episode_id) AS episode, task, ended_at FROM trajectories WHERE namespace = {namespace:String}
    LIMIT 1 BY episode
) AS assembled ON assembled.episode = reported.episode
LEFT JOIN
(
    SELECT episode_key, toNullable(min(started_at)) AS at
    FROM episodes
    WHERE namespace = {namespace:String} AND episode_key IN (SELECT episode FROM reported WHERE started_at IS NULL)
    GROUP BY episode_key
) AS began ON began.episode_key = reported.episode
GROUP BY task, reward
ORDER BY task, reward
