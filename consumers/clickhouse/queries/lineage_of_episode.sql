-- name: lineage_of_episode
-- From an episode (or a sub-agent's root) to every group, batch and step that it went into, with the result of each.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param episode String = '' : episode id
-- id episode = episode
WITH
    (
        SELECT groupUniqArray((trajectory_id, episode_id, toString(closed_by)))
        FROM
        (
            SELECT trajectory_id, episode_id, closed_by FROM trajectories
            WHERE namespace = {namespace:String} AND episode_id = {episode:String}
            UNION ALL
            SELECT trajectory_id, episode_id, closed_by FROM trajectories
            WHERE namespace = {namespace:String} AND root_episode_id = {episode:String}
        )
    ) AS found
SELECT
    arrayFirst(pair -> pair.1 = ids.trajectory_id, found).2 AS episode_id,
    ids.trajectory_id AS trajectory_id,
    arrayFirst(pair -> pair.1 = ids.trajectory_id, found).3 AS closed_by,
    members.run_id AS run_id,
    members.group_id AS group_id,
    members.reward AS reward,
    members.advantage AS advantage,
    steps.step AS step,
    steps.batch_hash AS batch,
    steps.fate AS fate,
    steps.reason AS reason,
    steps.lag AS lag,
    steps.policy_version AS policy_version
FROM (SELECT arrayJoin(found).1 AS trajectory_id) AS ids
LEFT JOIN
(
    SELECT run_id, group_id, trajectory_id, toNullable(reward) AS reward, toNullable(advantage) AS advantage
    FROM group_members FINAL
    WHERE namespace = {namespace:String} AND trajectory_id IN (SELECT arrayJoin(found).1)
) AS members ON members.trajectory_id = ids.trajectory_id
LEFT JOIN
(
    SELECT run_id, group_id, trajectory_id, step, batch_hash, fate, reason, lag, policy_version
    FROM step_members FINAL
    WHERE namespace = {namespace:String} AND trajectory_id IN (SELECT arrayJoin(found).1)
) AS steps
    ON steps.run_id = members.run_id
    AND steps.group_id = members.group_id
    AND steps.trajectory_id = ids.trajectory_id
ORDER BY episode_id, run_id, group_id, step
