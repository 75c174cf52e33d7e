-- name: groups_without_signal
-- Share of groups whose rewards were all equal, by task and policy version, told apart by what they were equal to.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
-- param low Float64 = 0.0 : reward that counts as all failed
-- param high Float64 = 1.0 : reward that counts as all solved
SELECT
    groups.task AS task,
    members.policy_version AS policy_version,
    count() AS groups,
    countIf(NOT groups.has_signal) AS without_signal,
    without_signal / groups AS share,
    countIf(NOT groups.has_signal AND groups.reward_max <= {low:Float64}) AS all_failed,
    countIf(NOT groups.has_signal AND groups.reward_min >= {high:Float64}) AS all_solved,
    avg(groups.size) AS size_mean,
    avg(groups.reward_std) AS reward_std_mean
FROM
(
    SELECT * FROM groups FINAL WHERE namespace = {namespace:String} AND run_id = {run:String}
) AS groups
INNER JOIN
(
    SELECT group_id, max(max_policy_version) AS policy_version
    FROM group_members FINAL
    WHERE namespace = {namespace:String} AND run_id = {run:String}
    GROUP BY group_id
) AS members ON members.group_id = groups.group_id
GROUP BY task, policy_version
ORDER BY task, policy_version
