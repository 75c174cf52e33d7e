-- name: funnel_rewards
-- Reports of rewards since a time, by name; how many came after their trajectory was dropped for want of them, and how
-- long after it was assembled. A user's silence is no report that somebody could have made earlier.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
-- param since_ms Int64 = 0 : milliseconds since 1970, by the broker's clock
WITH fromUnixTimestamp64Milli({since_ms:Int64}, 'UTC') AS since
SELECT
    reports.name AS name,
    count() AS number,
    uniqExact(reports.episode_key) AS episodes,
    countIf(missed.is_there AND reports.at > missed.at) AS late,
    quantileExactIf(0.5)(date_diff('ms', assembled.at, reports.at), missed.is_there AND reports.at > missed.at) AS p50_ms,
    quantileExactIf(0.9)(date_diff('ms', assembled.at, reports.at), missed.is_there AND reports.at > missed.at) AS p90_ms
FROM
(
    SELECT cityHash64(episode_id) AS episode_key, toString(name) AS name, min(kafka_timestamp) AS at
    FROM rewards
    WHERE namespace = {namespace:String} AND episode_id != '' AND NOT retracted AND signal != 'silence'
        AND kafka_timestamp >= since
    GROUP BY episode_key, event_id, name
) AS reports
LEFT JOIN
(
    SELECT episode_key, any(trajectory_key) AS trajectory_key, min(kafka_timestamp) AS at
    FROM trajectories
    WHERE namespace = {namespace:String} AND kafka_timestamp >= since
    GROUP BY episode_key
) AS assembled ON assembled.episode_key = reports.episode_key
LEFT JOIN
(
    SELECT trajectory_key, true AS is_there, min(kafka_timestamp) AS at
    FROM drop_trajectories
    WHERE namespace = {namespace:String} AND run_id IN ('', {run:String}) AND reason = 'score_missing'
        AND kafka_timestamp >= since
    GROUP BY trajectory_key
) AS missed ON missed.trajectory_key = assembled.trajectory_key
GROUP BY name
ORDER BY number DESC, name
