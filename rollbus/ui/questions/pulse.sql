-- name: pulse
-- What changes when something new is written: ranges of the sink, steps, and when the newest row came.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
SELECT
    (SELECT count() FROM sink_ranges WHERE namespace = {namespace:String}) AS ranges,
    (SELECT max(ingested_at) FROM sink_ranges WHERE namespace = {namespace:String}) AS newest_range,
    (SELECT max(step) FROM steps WHERE namespace = {namespace:String} AND run_id = {run:String}) AS newest_step,
    (SELECT count() FROM steps WHERE namespace = {namespace:String} AND run_id = {run:String}) AS step_records,
    (SELECT count() FROM dead_letters WHERE namespace = {namespace:String}) AS dead_letters
