-- name: is_anything_lost
-- Per topic: what the sink read, compared with the tables. A hole is a range that does not begin at the end of another:
-- there should be none. Absorbed records were stored and have no row: a merge removed repeats of known ids, the episode is
-- forgotten, or the row is older than `clickhouse: retention:`. If none of these explains it, `rollbus sink rebuild` does.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- chart records
WITH
    ranges AS
    (
        SELECT
            *,
            max(next_offset) OVER (
                PARTITION BY kafka_topic, kafka_partition ORDER BY from_offset, next_offset
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ) AS read_before,
            row_number() OVER (PARTITION BY kafka_topic, kafka_partition ORDER BY from_offset, next_offset) AS number
        FROM (SELECT * FROM sink_ranges FINAL WHERE namespace = {namespace:String})
    ),
    partitions AS
    (
        SELECT
            kafka_topic,
            kafka_partition,
            count() AS ranges,
            sum(records) AS records,
            sum(stored) AS stored,
            sum(dead_letters) AS dead_letters,
            countIf(number > 1 AND from_offset > read_before) AS holes,
            max(next_offset) AS read_to,
            greatest(max(end_offset), read_to) - read_to AS behind
        FROM ranges
        GROUP BY kafka_topic, kafka_partition
    ),
    places AS
    (
        SELECT kafka_topic, sum(places) AS in_tables
        FROM
        (
            SELECT kafka_topic, kafka_partition, groupBitmap(toUInt64(kafka_offset)) AS places
            FROM stored_places(namespace = {namespace:String})
            GROUP BY kafka_topic, kafka_partition
        )
        GROUP BY kafka_topic
    )
SELECT
    partitions.kafka_topic AS topic,
    count() AS partitions,
    sum(partitions.ranges) AS ranges,
    sum(partitions.records) AS records,
    sum(partitions.stored) AS stored,
    any(places.in_tables) AS in_tables,
    toInt64(stored) - toInt64(in_tables) AS absorbed,
    sum(partitions.dead_letters) AS dead_letters,
    sum(partitions.holes) AS holes,
    sum(partitions.behind) AS behind
FROM partitions
LEFT JOIN places ON places.kafka_topic = partitions.kafka_topic
GROUP BY topic
ORDER BY topic
