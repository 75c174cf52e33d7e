-- name: funnel_producers
-- What recorders that reported since a time did not record or send, since their processes began: each counter of a loss.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param since_ms Int64 = 0 : milliseconds since 1970, by the broker's clock
SELECT
    toString(counter) AS counter,
    toInt64(sum(amount)) AS number,
    arraySort(groupUniqArray(5)(producer)) AS producers
FROM
(
    SELECT toString(producer) AS producer, argMax(counters, (reported_at, kafka_offset)) AS newest
    FROM producer_reports
    WHERE namespace = {namespace:String} AND kafka_timestamp >= fromUnixTimestamp64Milli({since_ms:Int64}, 'UTC')
    GROUP BY producer, writer_id
)
ARRAY JOIN mapKeys(newest) AS counter, mapValues(newest) AS amount
WHERE amount > 0 AND (counter = 'calls_outside_episode' OR match(counter, '^(events_dropped|hook_errors)[.]'))
GROUP BY counter
ORDER BY number DESC, counter
