-- name: steps_of_episode
-- From an episode (or a sub-agent's root) to every group, batch and step that it went into, and what they did with it.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param episode String = '' : episode id
WITH
    found AS
    (
        SELECT trajectory_id, episode_id
        FROM trajectories FINAL
        WHERE namespace = {namespace:String}
            AND (episode_id = {episode:String} OR root_episode_id = {episode:String})
    ),
    members AS
    (
        SELECT run_id, group_id, trajectory_id, reward, advantage
        FROM group_members FINAL
        WHERE namespace = {namespace:String} AND trajectory_id IN (SELECT trajectory_id FROM found)
    )
SELECT
    found.episode_id AS episode_id,
    found.trajectory_id AS trajectory_id,
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
FROM found
LEFT JOIN members ON members.trajectory_id = found.trajectory_id
LEFT JOIN
(
    SELECT *
    FROM step_members FINAL
    WHERE namespace = {namespace:String} AND trajectory_id IN (SELECT trajectory_id FROM found)
) AS steps
    ON steps.run_id = members.run_id
    AND steps.group_id = members.group_id
    AND steps.trajectory_id = found.trajectory_id
ORDER BY episode_id, run_id, group_id, step
