-- name: event
-- One event as it is stored: the columns of its envelope and of the typed table of its kind, as JSON.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param id String = '' : event id
WITH found AS
(
    SELECT episode_id FROM events WHERE namespace = {namespace:String} AND event_id = {id:String}
)
SELECT 'events' AS table, formatRow('JSONEachRow', *) AS row
FROM (SELECT * FROM events FINAL WHERE namespace = {namespace:String} AND event_id = {id:String})
UNION ALL
SELECT 'episodes', formatRow('JSONEachRow', *)
FROM (SELECT * FROM episodes FINAL WHERE namespace = {namespace:String} AND event_id = {id:String}
    AND episode_id IN (SELECT episode_id FROM found))
UNION ALL
SELECT 'turns', formatRow('JSONEachRow', *)
FROM (SELECT * FROM turns FINAL WHERE namespace = {namespace:String} AND event_id = {id:String}
    AND episode_id IN (SELECT episode_id FROM found))
UNION ALL
SELECT 'turn_tokens', formatRow('JSONEachRow', *)
FROM (SELECT * FROM turn_tokens FINAL WHERE namespace = {namespace:String} AND event_id = {id:String}
    AND episode_id IN (SELECT episode_id FROM found))
UNION ALL
SELECT 'tool_calls', formatRow('JSONEachRow', *)
FROM (SELECT * FROM tool_calls FINAL WHERE namespace = {namespace:String} AND event_id = {id:String}
    AND episode_id IN (SELECT episode_id FROM found))
UNION ALL
SELECT 'rewards', formatRow('JSONEachRow', *)
FROM (SELECT * FROM rewards FINAL WHERE namespace = {namespace:String} AND event_id = {id:String}
    AND episode_id IN (SELECT episode_id FROM found))
UNION ALL
SELECT 'episode_ends', formatRow('JSONEachRow', *)
FROM (SELECT * FROM episode_ends FINAL WHERE namespace = {namespace:String} AND event_id = {id:String}
    AND episode_id IN (SELECT episode_id FROM found))
