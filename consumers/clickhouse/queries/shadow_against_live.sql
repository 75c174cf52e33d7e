-- name: shadow_against_live
-- Live and a shadow that follows it with another reward or curriculum, number by number: what each made of the same episodes.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param other String = '' : the shadow's namespace, such as 'replay-gentle.'; empty means the newest one
-- param run String = 'main' : run id
WITH
    (
        SELECT argMax(toString(replay_namespace), started_at)
        FROM replays FINAL
        WHERE source_namespace = {namespace:String} AND state IN ('following', 'complete')
    ) AS newest,
    if({other:String} != '', {other:String}, ifNull(newest, '')) AS chosen
SELECT what, live, shadow, shadow - live AS difference
FROM
(
    SELECT 1 AS rank, 'trajectories scored' AS what,
        toFloat64(uniqExactIf(trajectory_key, namespace = {namespace:String})) AS live,
        toFloat64(uniqExactIf(trajectory_key, namespace = chosen)) AS shadow
    FROM scores WHERE namespace IN ({namespace:String}, chosen)
    UNION ALL
    SELECT 2, 'mean reward', avgIf(value, namespace = {namespace:String}), avgIf(value, namespace = chosen)
    FROM
    (
        SELECT namespace, argMin(value, kafka_offset) AS value
        FROM scores WHERE namespace IN ({namespace:String}, chosen) AND revision = 0
        GROUP BY namespace, trajectory_key
    )
    UNION ALL
    SELECT 3, 'groups', countIf(namespace = {namespace:String}), countIf(namespace = chosen)
    FROM groups FINAL WHERE namespace IN ({namespace:String}, chosen) AND run_id = {run:String}
    UNION ALL
    SELECT 4, 'groups with signal', countIf(has_signal AND namespace = {namespace:String}),
        countIf(has_signal AND namespace = chosen)
    FROM groups FINAL WHERE namespace IN ({namespace:String}, chosen) AND run_id = {run:String}
    UNION ALL
    SELECT 5, 'groups in batches', countIf(namespace = {namespace:String}), countIf(namespace = chosen)
    FROM batch_groups FINAL WHERE namespace IN ({namespace:String}, chosen) AND run_id = {run:String}
    UNION ALL
    SELECT 6, 'trajectories dropped', uniqExactIf(trajectory_key, namespace = {namespace:String}),
        uniqExactIf(trajectory_key, namespace = chosen)
    FROM drop_trajectories WHERE namespace IN ({namespace:String}, chosen) AND run_id IN ('', {run:String})
)
WHERE chosen != ''
ORDER BY rank
