-- name: shadow_against_live
-- Live compared with a shadow that follows it with another reward or curriculum, on the episodes of the shadow.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param other String = '' : the shadow's namespace, such as 'replay-gentle.rollbus.'; empty means the newest one
-- param run String = 'main' : run id
-- id other = replay
WITH
    (
        SELECT argMax(toString(replay_namespace), started_at)
        FROM replays FINAL
        WHERE source_namespace = {namespace:String} AND state IN ('following', 'complete')
    ) AS newest,
    if({other:String} != '', {other:String}, ifNull(newest, '')) AS chosen,
    seen AS
    (
        SELECT trajectory_key FROM scores WHERE namespace = chosen
        UNION DISTINCT
        SELECT trajectory_key FROM drop_trajectories WHERE namespace = chosen
        UNION DISTINCT
        SELECT cityHash64(trajectory_id) FROM group_members
        WHERE namespace = chosen OR (namespace = {namespace:String} AND (run_id, group_id) IN
            (SELECT run_id, group_id FROM batch_groups WHERE namespace = chosen))
    ),
    lives AS
    (
        SELECT group_id FROM group_members
        WHERE namespace = {namespace:String} AND run_id = {run:String}
            AND cityHash64(trajectory_id) IN (SELECT trajectory_key FROM seen)
    )
SELECT what, live, shadow, shadow - live AS difference
FROM
(
    SELECT 1 AS rank, 'trajectories scored' AS what,
        toFloat64(uniqExactIf(trajectory_key, namespace = {namespace:String})) AS live,
        nullIf(toFloat64(uniqExactIf(trajectory_key, namespace = chosen)), 0) AS shadow -- it may score nothing itself
    FROM scores
    WHERE namespace = chosen
        OR (namespace = {namespace:String} AND trajectory_key IN (SELECT trajectory_key FROM seen))
    UNION ALL
    SELECT 2, 'mean reward', avgIf(value, live), avgIf(value, NOT live)
    FROM
    (
        SELECT value, true AS live FROM latest_scores(namespace = {namespace:String})
        WHERE trajectory_key IN (SELECT trajectory_key FROM seen)
        UNION ALL
        SELECT value, false FROM latest_scores(namespace = chosen)
    )
    UNION ALL
    SELECT 3, 'groups', countIf(namespace = {namespace:String}), countIf(namespace = chosen)
    FROM groups FINAL
    WHERE run_id = {run:String}
        AND (namespace = chosen OR (namespace = {namespace:String} AND group_id IN (SELECT group_id FROM lives)))
    UNION ALL
    SELECT 4, 'groups with signal', countIf(has_signal AND namespace = {namespace:String}),
        countIf(has_signal AND namespace = chosen)
    FROM groups FINAL
    WHERE run_id = {run:String}
        AND (namespace = chosen OR (namespace = {namespace:String} AND group_id IN (SELECT group_id FROM lives)))
    UNION ALL
    SELECT 5, 'groups in batches', countIf(namespace = {namespace:String}), countIf(namespace = chosen)
    FROM batch_groups FINAL
    WHERE run_id = {run:String}
        AND (namespace = chosen OR (namespace = {namespace:String} AND group_id IN (SELECT group_id FROM lives)))
    UNION ALL
    SELECT 6, 'trajectories dropped', uniqExactIf(trajectory_key, namespace = {namespace:String}),
        uniqExactIf(trajectory_key, namespace = chosen)
    FROM drop_trajectories
    WHERE run_id IN ('', {run:String})
        AND (namespace = chosen OR (namespace = {namespace:String} AND trajectory_key IN (SELECT trajectory_key FROM seen)))
)
WHERE (SELECT count() FROM seen WHERE chosen != '') > 0
ORDER BY rank
