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
    -- by halves where the whole distance is beyond any float: a reward may be as large as one
    least(toInt64(20 * multiIf(ends.high = ends.low, 0,
        isFinite(ends.high - ends.low), (reading - ends.low) / (ends.high - ends.low),
        (reading / 2 - ends.low / 2) / (ends.high / 2 - ends.low / 2))), 19) AS bin,
    any(if(isFinite(ends.high - ends.low), ends.low + bin / 20 * (ends.high - ends.low),
        ends.low * (1 - bin / 20) + ends.high * (bin / 20))) AS from_value,
    any(if(isFinite(ends.high - ends.low), ends.low + (bin + 1) / 20 * (ends.high - ends.low),
        ends.low * (1 - (bin + 1) / 20) + ends.high * ((bin + 1) / 20))) AS to_value,
    count() AS trajectories
FROM readings
INNER JOIN ends ON ends.kind = readings.kind
GROUP BY kind, bin
ORDER BY kind, bin
