-- name: attempts_alike
-- Other trajectories that began with the same messages, of any version, the newest first.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param trajectory String = '' : trajectory id
WITH
    (
        SELECT any(opening_hash) FROM trajectories
        WHERE namespace = {namespace:String} AND trajectory_id = {trajectory:String}
    ) AS opening,
    alike AS
    (
        SELECT trajectory_id, trajectory_key, max_policy_version, started_at FROM trajectories FINAL
        WHERE namespace = {namespace:String} AND opening != '' AND opening_hash = opening
            AND trajectory_id != {trajectory:String}
        ORDER BY started_at DESC
        LIMIT 20
    )
SELECT alike.trajectory_id AS trajectory_id, alike.max_policy_version AS policy_version, alike.started_at AS started_at,
    score.value AS reward
FROM alike
LEFT JOIN
(
    SELECT trajectory_key, value FROM latest_scores(namespace = {namespace:String})
    WHERE trajectory_key IN (SELECT trajectory_key FROM alike)
) AS score ON score.trajectory_key = alike.trajectory_key
ORDER BY started_at DESC
