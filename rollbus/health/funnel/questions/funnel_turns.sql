-- name: funnel_turns
-- Turns since a time, by model as its answers name it, by the server that was asked and by why they cannot be trained, with
-- who recorded them.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param since_ms Int64 = 0 : milliseconds since 1970, by the broker's clock
WITH fromUnixTimestamp64Milli({since_ms:Int64}, 'UTC') AS since
SELECT
    splitByChar('@', toString(turns.model))[1] AS name,
    ifNull(toString(turns.untrainable_reason), '') AS reason,
    toString(turns.server) AS server,
    uniqExact(turns.event_id) AS number,
    arraySort(groupUniqArrayIf(50)(assumeNotNull(turns.policy_version), turns.policy_version IS NOT NULL)) AS versions,
    arraySort(groupUniqArray(5)(toString(began.producer))) AS producers
FROM
(
    SELECT model, server, untrainable_reason, event_id, policy_version, cityHash64(episode_id) AS episode_key
    FROM turns
    WHERE namespace = {namespace:String} AND kafka_timestamp >= since
) AS turns
LEFT JOIN
(
    SELECT episode_key, any(producer) AS producer
    FROM episodes
    WHERE namespace = {namespace:String} AND kafka_timestamp >= since
    GROUP BY episode_key
) AS began ON began.episode_key = turns.episode_key
GROUP BY name, server, reason
ORDER BY number DESC, name, server, reason
