-- name: side_by_side
-- Rewards of two models or versions, by task and by component, with the difference and its 95 % interval.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param left_model String = '' : model on the left; empty means any
-- param right_model String = '' : model on the right; empty means any
-- param left_version Int64 = -1 : only what this version sampled; −1 means all
-- param right_version Int64 = -1 : only what this version sampled; −1 means all
WITH
    known AS
    (
        SELECT
            ({left_model:String} = '' OR model = {left_model:String})
                AND ({left_version:Int64} = -1 OR max_policy_version = {left_version:Int64}) AS on_left,
            ({right_model:String} = '' OR model = {right_model:String})
                AND ({right_version:Int64} = -1 OR max_policy_version = {right_version:Int64}) AS on_right,
            toString(task) AS task_name,
            assumeNotNull(value) AS reward,
            components
        FROM latest_scores(namespace = {namespace:String})
        WHERE value IS NOT NULL AND (on_left OR on_right)
    )
SELECT
    kind,
    name,
    countIf(on_left) AS left_count,
    countIf(on_right) AS right_count,
    avgIf(number, on_left) AS left_mean,
    avgIf(number, on_right) AS right_mean,
    right_mean - left_mean AS difference,
    1.96 * sqrt(varSampIf(number, on_left) / left_count + varSampIf(number, on_right) / right_count) AS margin
FROM
(
    SELECT on_left, on_right, 'all' AS kind, 'all tasks' AS name, reward AS number FROM known
    UNION ALL
    SELECT on_left, on_right, 'task', task_name, reward FROM known
    UNION ALL
    SELECT on_left, on_right, 'component', toString(component), amount
    FROM known
    ARRAY JOIN mapKeys(components) AS component, mapValues(components) AS amount
)
GROUP BY kind, name
ORDER BY indexOf(['all', 'component', 'task'], kind), least(left_count, right_count) DESC, name
LIMIT 500
