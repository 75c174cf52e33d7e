-- name: funnel_settings
-- The configuration that each stage of a run has applied last, by its hash, and the replay that it was promoted from, if
-- it is one's; the stages of all runs included.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
WITH
    latest AS
    (
        SELECT
            toString(stage) AS stage,
            argMax(config_hash, (kafka_timestamp, kafka_offset)) AS applied,
            argMax(content, (kafka_timestamp, kafka_offset)) AS text
        FROM config_applied
        WHERE namespace = {namespace:String} AND run_id IN ('', {run:String})
            AND stage IN ('assembly', 'scoring', 'grouping')
        GROUP BY stage
    ),
    replayed AS
    (
        SELECT arrayJoin(mapValues(overrides)) AS text, argMax(name, started_at) AS name
        FROM replays
        WHERE source_namespace = {namespace:String}
        GROUP BY text
    )
SELECT latest.stage AS stage, latest.applied AS applied, replayed.name AS replay
FROM latest
LEFT JOIN replayed ON replayed.text = latest.text
ORDER BY stage
