-- name: members_of_group
-- The trajectories of one group: reward, advantage, by which weights they were sampled, and what became of each.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
-- param group String = '' : group id
WITH members AS
(
    SELECT * FROM group_members FINAL
    WHERE namespace = {namespace:String} AND run_id = {run:String} AND group_id = {group:String}
)
SELECT
    members.trajectory_id AS trajectory_id,
    members.episode_id AS episode_id,
    members.reward AS reward,
    members.advantage AS advantage,
    members.components AS components,
    members.min_policy_version AS oldest_version,
    members.max_policy_version AS newest_version,
    members.sampled_tokens AS sampled_tokens,
    multiIf(steps.fate != '', toString(steps.fate), drops.reason != '', 'dropped', 'pending') AS fate,
    steps.step AS step,
    steps.lag AS lag,
    if(steps.fate = 'trained', '', if(steps.fate = 'dropped', ifNull(steps.reason, ''), drops.reason)) AS reason
FROM members
LEFT JOIN
(
    SELECT trajectory_id, fate, step, lag, toString(ifNull(reason, '')) AS reason FROM step_members FINAL
    WHERE namespace = {namespace:String} AND run_id = {run:String} AND group_id = {group:String}
    ORDER BY fate = 'trained' DESC, step
    LIMIT 1 BY trajectory_id
) AS steps ON steps.trajectory_id = members.trajectory_id
LEFT JOIN
(
    SELECT trajectory_id, toString(argMin(reason, (dropped_at, stage))) AS reason FROM drop_trajectories FINAL
    WHERE namespace = {namespace:String} AND run_id IN ('', {run:String})
        AND trajectory_id IN (SELECT trajectory_id FROM members)
    GROUP BY trajectory_id
) AS drops ON drops.trajectory_id = members.trajectory_id
ORDER BY reward DESC, trajectory_id
