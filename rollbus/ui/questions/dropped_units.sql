-- name: dropped_units
-- The units that a stage dropped with one reason, the newest first: events, episodes, trajectories or groups.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
-- param stage String = '' : stage
-- param reason String = '' : reason
-- param limit UInt32 = 200 : most rows
SELECT unit, unit_id, trajectories, detail, dropped_at, kafka_topic, kafka_partition, kafka_offset,
    count() OVER () AS matches
FROM drops FINAL
WHERE namespace = {namespace:String} AND run_id IN ('', {run:String})
    AND stage = {stage:String} AND reason = {reason:String}
ORDER BY dropped_at DESC, unit_id
LIMIT {limit:UInt32}
