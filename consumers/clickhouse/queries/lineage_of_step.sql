-- name: lineage_of_step
-- The members of one step, a line each: the group by its place in the batch, what became of it, its reward, the versions
-- that sampled it, its episode. rewards_of_step says where rewards are from, events_of_step has every event.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
-- param step Int64 = 0 : number of the step; 0 means the newest that has members
-- id step = step
WITH
    chosen AS
    (
        SELECT group_id, trajectory_id, any(batch_hash) AS batch, any(toString(fate)) AS fate,
            any(ifNull(toString(reason), '')) AS reason, any(lag) AS lag, any(advantage) AS advantage
        FROM step_members
        WHERE namespace = {namespace:String} AND run_id = {run:String} AND step = if({step:Int64} != 0, {step:Int64}, (
            SELECT max(step) FROM step_members
            WHERE namespace = {namespace:String} AND run_id = {run:String} AND {step:Int64} = 0
        ))
        GROUP BY group_id, trajectory_id
    )
SELECT
    positions.position AS group,
    if(chosen.fate = 'trained', 'trained', concat('dropped: ', chosen.reason)) AS fate,
    chosen.lag AS lag,
    chosen.advantage AS advantage,
    members.reward AS reward,
    members.versions AS versions,
    members.episode AS episode_id
FROM chosen
LEFT JOIN
(
    SELECT group_id, any(position) AS position
    FROM batch_groups
    WHERE namespace = {namespace:String} AND run_id = {run:String} AND batch_hash IN (SELECT batch FROM chosen)
    GROUP BY group_id
) AS positions ON positions.group_id = chosen.group_id
LEFT JOIN
(
    SELECT group_id, trajectory_id, any(toNullable(reward)) AS reward, any(episode_id) AS episode,
        if(any(min_policy_version) = any(max_policy_version), toString(any(max_policy_version)),
            concat(toString(any(min_policy_version)), '–', toString(any(max_policy_version)))) AS versions
    FROM group_members
    WHERE namespace = {namespace:String} AND run_id = {run:String} AND group_id IN (SELECT group_id FROM chosen)
    GROUP BY group_id, trajectory_id
) AS members ON members.group_id = chosen.group_id AND members.trajectory_id = chosen.trajectory_id
ORDER BY group, episode_id
