-- name: data_sets
-- The data sets with their number of members; with a trajectory, whether it is one of them.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param trajectory String = '' : trajectory id
SELECT
    data_set,
    countIf(is_in) AS members,
    max(at) AS newest_change,
    countIf(is_in AND trajectory_id = {trajectory:String}) > 0 AS has_it
FROM
(
    SELECT toString(data_set) AS data_set, trajectory_id, argMax(is_member, (changed_at, kafka_offset)) AS is_in,
        max(changed_at) AS at
    FROM data_set_members
    WHERE namespace = {namespace:String}
    GROUP BY data_set, trajectory_id
)
GROUP BY data_set
ORDER BY newest_change DESC
LIMIT 500
