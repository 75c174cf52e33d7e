-- name: groups_of_step
-- The groups of one step, in the order of their batch, with their rewards and what became of their members.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
-- param step Int64 = 0 : number of the step
WITH members AS
(
    SELECT group_id, trajectory_id, batch_hash, fate, lag, sampled_tokens
    FROM step_members FINAL
    WHERE namespace = {namespace:String} AND run_id = {run:String} AND step = {step:Int64}
)
SELECT
    sums.group_id AS group_id,
    positions.position AS position,
    found.task AS task,
    found.size AS size,
    found.reward_mean AS reward_mean,
    found.reward_std AS reward_std,
    found.reward_min AS reward_min,
    found.reward_max AS reward_max,
    sums.trained AS trained,
    sums.dropped AS dropped,
    sums.lag_mean AS lag_mean,
    sums.tokens AS sampled_tokens,
    found.closed_by AS closed_by,
    found.closed_at AS closed_at
FROM
(
    SELECT
        group_id,
        countIf(fate = 'trained') AS trained,
        countIf(fate = 'dropped') AS dropped,
        avg(lag) AS lag_mean,
        sum(sampled_tokens) AS tokens
    FROM members
    GROUP BY group_id
) AS sums
LEFT JOIN
(
    SELECT * FROM groups FINAL
    WHERE namespace = {namespace:String} AND run_id = {run:String} AND group_id IN (SELECT group_id FROM members)
) AS found ON found.group_id = sums.group_id
LEFT JOIN
(
    SELECT group_id, position FROM batch_groups FINAL
    WHERE namespace = {namespace:String} AND run_id = {run:String}
        AND batch_hash IN (SELECT batch_hash FROM members)
) AS positions ON positions.group_id = sums.group_id
ORDER BY position, group_id
