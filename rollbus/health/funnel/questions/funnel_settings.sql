-- name: funnel_settings
-- The configuration that each stage of a run has applied last, by its hash; the stages of all runs included.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
SELECT toString(stage) AS stage, argMax(config_hash, (kafka_timestamp, kafka_offset)) AS applied
FROM config_applied
WHERE namespace = {namespace:String} AND run_id IN ('', {run:String}) AND stage IN ('assembly', 'scoring', 'grouping')
GROUP BY stage
ORDER BY stage
