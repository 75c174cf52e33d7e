-- name: committed_ranges
-- Every offset range that the sink wrote: records, rows, dead letters, and the digest of its bytes.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param topic String = '' : only this topic, without the prefix; empty means all
-- param limit UInt32 = 1000 : most rows, the newest of each partition first
-- chart records
WITH ranges AS
(
    SELECT * FROM sink_ranges FINAL
    WHERE namespace = {namespace:String} AND ({topic:String} = '' OR kafka_topic = {topic:String})
    ORDER BY kafka_topic, kafka_partition, from_offset DESC
    LIMIT {limit:UInt32}
)
SELECT
    ranges.kafka_topic AS topic,
    ranges.kafka_partition AS partition,
    ranges.from_offset AS from_offset,
    ranges.next_offset AS next_offset,
    ranges.records AS records,
    ranges.stored AS stored,
    ranges.rows AS rows,
    ranges.dead_letters AS dead_letters,
    ranges.digest AS digest,
    ranges.ingested_at AS written_at
FROM ranges
ORDER BY topic, partition, from_offset
