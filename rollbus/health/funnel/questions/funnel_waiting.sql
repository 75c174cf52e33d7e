-- name: funnel_waiting
-- Reports of rewards since a time that wait for what they name: an alias that no episode has, or an episode that has not
-- begun; how many, and the name that the newest of them has.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param since_ms Int64 = 0 : milliseconds since 1970, by the broker's clock
-- param settled_ms Int64 = 9223372036854 : the same; what came later may still be on its way
-- param known_ms Int64 = 0 : the same; episodes that began earlier are known no longer
WITH
    fromUnixTimestamp64Milli({since_ms:Int64}, 'UTC') AS since,
    settled AS
    (
        SELECT event_id, episode_id, ifNull(alias, '') AS alias, kafka_timestamp AS at
        FROM rewards
        WHERE namespace = {namespace:String} AND NOT retracted AND kafka_timestamp >= since
            AND kafka_timestamp <= fromUnixTimestamp64Milli({settled_ms:Int64}, 'UTC')
            AND event_id NOT IN
            (
                SELECT unit_id FROM drops
                WHERE namespace = {namespace:String} AND unit = 'event' AND kafka_timestamp >= since
            )
    )
SELECT 'alias' AS kind, uniqExact(event_id) AS reports, argMax(alias, (at, event_id)) AS example
FROM settled
WHERE episode_id = '' AND event_id NOT IN
(
    SELECT event_id FROM rewards
    WHERE namespace = {namespace:String} AND episode_id != '' AND kafka_timestamp >= since
)
HAVING reports > 0
UNION ALL
SELECT 'episode' AS kind, uniqExact(event_id) AS reports, argMax(episode_id, (at, event_id)) AS example
FROM settled
WHERE episode_id != '' AND NOT startsWith(episode_id, 'pause:') AND cityHash64(episode_id) NOT IN
(
    SELECT episode_key FROM episodes
    WHERE namespace = {namespace:String} AND kafka_timestamp >= fromUnixTimestamp64Milli({known_ms:Int64}, 'UTC')
)
HAVING reports > 0
ORDER BY kind
