-- name: distributions
-- How rewards, sampled tokens and advantages are spread: up to twenty bins each.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
-- param model String = '' : the model that the run trains; empty means all
WITH
    readings AS
    (
        SELECT 'reward' AS kind, assumeNotNull(value) AS reading FROM latest_scores(namespace = {namespace:String})
        WHERE value IS NOT NULL AND ({model:String} = '' OR model = {model:String})
        UNION ALL
        SELECT 'length', toFloat64(sampled_tokens) FROM latest_scores(namespace = {namespace:String})
        WHERE ({model:String} = '' OR model = {model:String})
        UNION ALL
        SELECT 'advantage', advantage FROM group_members FINAL
        WHERE namespace = {namespace:String} AND run_id = {run:String} AND isFinite(advantage)
    ),
    ends AS (SELECT kind, min(reading) AS low, max(reading) AS high FROM readings GROUP BY kind)
SELECT
    readings.kind AS kind,
    least(toInt64(if(ends.high > ends.low, 20 * (reading - ends.low) / (ends.high - ends.low), 0)), 19) AS bin,
    any(ends.low + bin * (ends.high - ends.low) / 20) AS from_value,
    any(ends.low + (bin + 1) * (ends.high - ends.low) / 20) AS to_value,
    count() AS trajectories
FROM readings
INNER JOIN ends ON ends.kind = readings.kind
GROUP BY kind, bin
ORDER BY kind, bin
