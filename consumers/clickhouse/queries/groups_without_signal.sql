-- name: groups_without_signal
-- Share of groups whose rewards were all equal, by task and policy version, with the reward that they all had.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
-- param low Float64 = 0.0 : reward that counts as all failed
-- param high Float64 = 1.0 : reward that counts as all solved
-- param rows UInt32 = 100 : most rows per task; more versions are taken together under their lowest
-- chart share
WITH
    versions AS
    (
        SELECT cityHash64(group_id) AS group_key, max(max_policy_version) AS version
        FROM group_members
        WHERE namespace = {namespace:String} AND run_id = {run:String}
        GROUP BY group_key
    ),
    (SELECT intDiv(max(version), {rows:UInt32}) + 1 FROM versions) AS width
SELECT
    groups.task AS task,
    intDiv(members.version, width) * width AS policy_version,
    count() AS groups,
    countIf(NOT groups.has_signal) AS without_signal,
    without_signal / groups AS share,
    countIf(NOT groups.has_signal AND groups.reward_max <= {low:Float64}) AS all_failed,
    countIf(NOT groups.has_signal AND groups.reward_min >= {high:Float64}) AS all_solved,
    avg(groups.size) AS size_mean,
    avg(groups.reward_std) AS reward_std_mean
FROM
(
    SELECT cityHash64(group_id) AS group_key, task, has_signal, reward_min, reward_max, size, reward_std
    FROM groups FINAL
    WHERE namespace = {namespace:String} AND run_id = {run:String}
) AS groups
INNER JOIN versions AS members ON members.group_key = groups.group_key
GROUP BY task, policy_version
ORDER BY task, policy_version
