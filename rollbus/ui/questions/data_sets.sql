-- name: data_sets
-- The data sets with their number of members, without excluded and forgotten ones, as an export takes them; with a
-- trajectory, whether it is one of them.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param trajectory String = '' : trajectory id
WITH excluded AS
(
    SELECT episode_id FROM excluded_episodes(namespace = {namespace:String})
)
SELECT
    data_set,
    countIf(is_in AND episode_id NOT IN (SELECT episode_id FROM excluded) AND trajectory_id NOT IN
    (
        SELECT trajectory_id FROM trajectories
        WHERE namespace = {namespace:String} AND root_episode_id IN (SELECT episode_id FROM excluded)
    )) AS members,
    max(at) AS newest_change,
    countIf(is_in AND trajectory_id = {trajectory:String}) > 0 AS has_it
FROM
(
    SELECT toString(data_set) AS data_set, trajectory_id, any(episode_id) AS episode_id,
        argMax(is_member, (changed_at, kafka_offset)) AS is_in,
        max(changed_at) AS at
    FROM data_set_members
    WHERE namespace = {namespace:String}
    GROUP BY data_set, trajectory_id
)
GROUP BY data_set
ORDER BY newest_change DESC
LIMIT 500
