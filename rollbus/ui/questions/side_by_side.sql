-- name: side_by_side
-- Rewards of two models or versions, by task and by component, with the difference and its 95 % interval (Welch's).
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
            task,
            assumeNotNull(value) AS reward,
            components
        FROM latest_scores(namespace = {namespace:String})
        WHERE value IS NOT NULL AND (on_left OR on_right)
    )
SELECT
    kind,
    name,
    left_count,
    right_count,
    left_mean,
    right_mean,
    right_mean - left_mean AS difference,
    left_variance / left_count AS left_part,
    right_variance / right_count AS right_part,
    pow(left_part + right_part, 2) / (pow(left_part, 2) / (left_count - 1) + pow(right_part, 2) / (right_count - 1))
        AS freedom,
    -- of Student's t; the engine's own test ends the whole question where all rewards of one task are equal
    if(freedom < 30,
        [12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145, 2.131, 2.12, 2.11,
            2.101, 2.093, 2.086, 2.08, 2.074, 2.069, 2.064, 2.06, 2.056, 2.052, 2.048, 2.045][toUInt8(freedom + 1e-6)],
        1.96 + 2.4 / freedom) AS quantile,
    if(left_part + right_part > 0, quantile * sqrt(left_part + right_part), NULL) AS margin
FROM
(
    SELECT
        if(grouping(task) = 1, 'all', 'task') AS kind,
        if(grouping(task) = 1, 'all tasks', toString(task)) AS name,
        countIf(on_left) AS left_count,
        countIf(on_right) AS right_count,
        avgIf(reward, on_left) AS left_mean,
        avgIf(reward, on_right) AS right_mean,
        varSampStableIf(reward, on_left) AS left_variance,
        varSampStableIf(reward, on_right) AS right_variance
    FROM known
    GROUP BY GROUPING SETS ((task), ())
    HAVING count() > 0
    UNION ALL
    SELECT
        'component' AS kind,
        toString(component) AS name,
        countIf(on_left) AS left_count,
        countIf(on_right) AS right_count,
        avgIf(amount, on_left) AS left_mean,
        avgIf(amount, on_right) AS right_mean,
        varSampStableIf(amount, on_left) AS left_variance,
        varSampStableIf(amount, on_right) AS right_variance
    FROM known
    ARRAY JOIN mapKeys(components) AS component, mapValues(components) AS amount
    GROUP BY component
)
ORDER BY indexOf(['all', 'component', 'task'], kind), least(left_count, right_count) DESC, name
LIMIT 500
