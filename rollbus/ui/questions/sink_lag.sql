-- name: sink_lag
-- Each topic as the sink last saw it: records read, and how many offsets were still ahead when it cut its newest range.
-- param namespace String = 'rollbus.' : prefix of the log's topics
SELECT
    topic,
    count() AS partitions,
    sum(records_read) AS records,
    sum(greatest(0, log_end - position)) AS lag,
    max(written) AS newest_write
FROM
(
    SELECT
        kafka_topic AS topic,
        kafka_partition,
        sum(records) AS records_read,
        argMax(end_offset, from_offset) AS log_end,
        max(next_offset) AS position,
        max(ingested_at) AS written
    FROM sink_ranges FINAL
    WHERE namespace = {namespace:String}
    GROUP BY kafka_topic, kafka_partition
)
GROUP BY topic
ORDER BY lag DESC, topic
