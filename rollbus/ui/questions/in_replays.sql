-- name: in_replays
-- One trajectory in this log and in each replay of it: its reward, its advantage, whether a batch has its group, and why not.
-- param run String = 'main' : run id
-- param trajectory String = '' : trajectory id
SELECT
    scored.namespace AS namespace,
    scored.reward AS reward,
    member.advantage AS advantage,
    batched.group_id != '' AS is_admitted,
    dropped.reason AS reason
FROM
(
    SELECT toString(namespace) AS namespace, argMax(tuple(value), revision).1 AS reward FROM scores FINAL
    WHERE trajectory_key = cityHash64({trajectory:String})
    GROUP BY namespace
) AS scored
LEFT JOIN
(
    SELECT toString(namespace) AS namespace, any(group_id) AS group_id, toNullable(any(advantage)) AS advantage
    FROM group_members FINAL
    WHERE run_id = {run:String} AND trajectory_key = cityHash64({trajectory:String})
    GROUP BY namespace
) AS member ON member.namespace = scored.namespace
LEFT JOIN
(
    SELECT DISTINCT toString(namespace) AS namespace, group_id FROM batch_groups
    WHERE run_id = {run:String} AND group_id IN
    (
        SELECT group_id FROM group_members
        WHERE run_id = {run:String} AND trajectory_key = cityHash64({trajectory:String})
    )
) AS batched ON batched.namespace = scored.namespace AND batched.group_id = member.group_id
LEFT JOIN
(
    SELECT toString(namespace) AS namespace, toString(argMin(reason, dropped_at)) AS reason FROM drop_trajectories FINAL
    WHERE run_id IN ('', {run:String}) AND trajectory_key = cityHash64({trajectory:String})
    GROUP BY namespace
) AS dropped ON dropped.namespace = scored.namespace
ORDER BY namespace
LIMIT 50
