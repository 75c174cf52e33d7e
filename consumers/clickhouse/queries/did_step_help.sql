-- name: did_step_help
-- Did one step help: rewards of the version before it and of the version that it made, on the tasks that both played.
-- The last row is over all of these tasks, weighted by how often each was played after the step.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
-- param step Int64 = 0 : number of the step; 0 means the newest completed one
-- id step = step
-- chart change
WITH
    (
        SELECT argMax((toString(model), base_version, assumeNotNull(policy_version)), step)
        FROM steps FINAL
        WHERE namespace = {namespace:String} AND run_id = {run:String} AND state = 'completed'
            AND ({step:Int64} = 0 OR step = {step:Int64})
    ) AS chosen,
    (
        SELECT groupArray((task, before, after, mean_before, mean_after, error))
        FROM
        (
            SELECT
                toString(task) AS task,
                countIf(max_policy_version = chosen.2) AS before,
                countIf(max_policy_version = chosen.3) AS after,
                avgIf(assumeNotNull(value), max_policy_version = chosen.2) AS mean_before,
                avgIf(assumeNotNull(value), max_policy_version = chosen.3) AS mean_after,
                varSampStableIf(assumeNotNull(value), max_policy_version = chosen.2) / before
                    + varSampStableIf(assumeNotNull(value), max_policy_version = chosen.3) / after AS error
            FROM latest_scores(namespace = {namespace:String})
            WHERE value IS NOT NULL AND model = chosen.1 AND max_policy_version IN (chosen.2, chosen.3)
            GROUP BY task
            HAVING before > 0 AND after > 0
        )
    ) AS tasks,
    arraySum(one -> one.3, tasks) AS episodes
SELECT
    row.1 AS task,
    row.2 AS episodes_before,
    row.3 AS episodes_after,
    row.4 AS reward_before,
    row.5 AS reward_after,
    reward_after - reward_before AS change,
    if(isFinite(row.6), change - 1.96 * sqrt(row.6), NULL) AS change_low, -- one episode has no deviation
    if(isFinite(row.6), change + 1.96 * sqrt(row.6), NULL) AS change_high
FROM
(
    SELECT arrayJoin(if(empty(tasks), [], arrayPushBack(arraySort(tasks), (
        'all',
        arraySum(one -> one.2, tasks),
        episodes,
        arraySum(one -> one.4 * one.3, tasks) / episodes,
        arraySum(one -> one.5 * one.3, tasks) / episodes,
        arraySum(one -> one.6 * pow(one.3 / episodes, 2), tasks)
    )))) AS row
)
