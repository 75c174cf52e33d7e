-- name: unsolved_tasks
-- Tasks and examples whose best reward over the newest policy versions is below a bound: nothing to learn from yet.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param model String = '' : only this model; empty means all
-- param versions UInt32 = 5 : how many of the newest versions count
-- param success Float64 = 1.0 : least reward that counts as solved
-- param limit UInt32 = 100 : most rows
WITH newest AS
(
    SELECT DISTINCT assumeNotNull(max_policy_version) AS version
    FROM scores
    WHERE namespace = {namespace:String} AND max_policy_version IS NOT NULL
        AND ({model:String} = '' OR model = {model:String})
    ORDER BY version DESC
    LIMIT {versions:UInt32}
)
SELECT
    task,
    example_id,
    count() AS attempts,
    max(value) AS best,
    avg(value) AS reward_mean
FROM latest_scores(namespace = {namespace:String})
WHERE value IS NOT NULL AND max_policy_version IN (SELECT version FROM newest)
    AND ({model:String} = '' OR model = {model:String})
GROUP BY task, example_id
HAVING best < {success:Float64}
ORDER BY attempts DESC, task, example_id
LIMIT {limit:UInt32}
