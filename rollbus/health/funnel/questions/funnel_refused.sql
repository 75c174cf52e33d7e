-- name: funnel_refused
-- Events since a time that do not count, and cost no episode by themselves: how many, by reason, and one of them.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param since_ms Int64 = 0 : milliseconds since 1970, by the broker's clock
SELECT toString(reason) AS reason, uniqExact(unit_id) AS events, argMax(detail, (kafka_timestamp, unit_id)) AS example
FROM drops
WHERE namespace = {namespace:String} AND unit = 'event'
    AND kafka_timestamp >= fromUnixTimestamp64Milli({since_ms:Int64}, 'UTC')
GROUP BY reason
ORDER BY events DESC, reason
