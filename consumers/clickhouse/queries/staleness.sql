-- name: staleness
-- How many steps old trained trajectories were, with their mean reward and absolute advantage; drops for age at the end.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
-- chart trajectories
WITH members AS
(
    SELECT cityHash64(group_id, trajectory_id) AS member, fate, reason, lag, advantage, sampled_tokens
    FROM step_members FINAL
    WHERE namespace = {namespace:String} AND run_id = {run:String}
)
SELECT
    if(members.fate = 'trained', toString(members.lag), assumeNotNull(members.reason)) AS lag,
    count() AS trajectories,
    count() / (SELECT count() FROM members) AS share,
    sum(members.sampled_tokens) AS sampled_tokens,
    avg(group_members.reward) AS reward_mean,
    avg(abs(members.advantage)) AS advantage_size
FROM members
LEFT ANY JOIN
(
    SELECT cityHash64(group_id, trajectory_id) AS member, toNullable(reward) AS reward
    FROM group_members
    WHERE namespace = {namespace:String} AND run_id = {run:String}
) AS group_members ON group_members.member = members.member
WHERE members.fate = 'trained' OR members.reason IN ('stale', 'off_lineage')
GROUP BY lag
ORDER BY toInt64OrNull(lag) NULLS LAST, lag
