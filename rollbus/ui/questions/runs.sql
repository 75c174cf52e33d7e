-- name: runs
-- The runs that have groups or steps, with their newest step.
-- param namespace String = 'rollbus.' : prefix of the log's topics
SELECT run_id, max(number) AS newest_step
FROM
(
    SELECT toString(run_id) AS run_id, max(step) AS number FROM steps
    WHERE namespace = {namespace:String} GROUP BY run_id
    UNION ALL
    SELECT toString(run_id) AS run_id, 0 FROM groups WHERE namespace = {namespace:String} GROUP BY run_id
)
GROUP BY run_id
ORDER BY run_id
