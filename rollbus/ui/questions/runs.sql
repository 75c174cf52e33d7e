-- name: runs
-- The runs that have rows, with their newest step and the model that it trained. The page adds those of the settings.
-- param namespace String = 'rollbus.' : prefix of the log's topics
SELECT run_id, max(number) AS newest_step, argMax(trained_model, number) AS model
FROM
(
    SELECT toString(run_id) AS run_id, max(step) AS number, toString(argMax(model, step)) AS trained_model FROM steps
    WHERE namespace = {namespace:String} GROUP BY run_id
    UNION ALL
    SELECT toString(run_id) AS run_id, 0, toString(any(model)) FROM groups
    WHERE namespace = {namespace:String} GROUP BY run_id
    UNION ALL
    SELECT toString(run_id) AS run_id, 0, '' FROM config_applied
    WHERE namespace = {namespace:String} AND run_id != '' GROUP BY run_id
)
GROUP BY run_id
ORDER BY run_id
