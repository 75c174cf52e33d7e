-- name: pass_at_k
-- Chance that one of k attempts succeeds, by task and policy version: the unbiased estimate from each group's attempts.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
-- param success Float64 = 1.0 : least reward that counts as solved
-- param rows UInt32 = 20 : most rows per task and k; more versions are taken together under their lowest
-- chart pass
WITH
    (
        SELECT intDiv(max(max_policy_version), {rows:UInt32}) + 1
        FROM group_members
        WHERE namespace = {namespace:String} AND run_id = {run:String}
    ) AS width
SELECT
    groups.task AS task,
    intDiv(members.version, width) * width AS policy_version,
    k,
    count() AS groups,
    avg(if(members.n - members.solved < k, 1,
        1 - exp(arraySum(i -> log((members.n - members.solved - i) / (members.n - i)), range(k))))) AS pass
FROM
(
    SELECT cityHash64(group_id) AS group_key, max(max_policy_version) AS version,
        toInt64(count()) AS n, toInt64(countIf(reward >= {success:Float64})) AS solved
    FROM group_members FINAL
    WHERE namespace = {namespace:String} AND run_id = {run:String}
    GROUP BY group_key
) AS members
INNER JOIN
(
    SELECT cityHash64(group_id) AS group_key, task
    FROM groups FINAL
    WHERE namespace = {namespace:String} AND run_id = {run:String}
) AS groups ON groups.group_key = members.group_key
ARRAY JOIN arrayFilter(k -> k <= members.n, [1, 2, 4, 8, 16]) AS k
GROUP BY task, policy_version, k
ORDER BY task, policy_version, k
