-- name: before_and_after
-- Rewards before a policy version and from it on, by task, with a rank test: a small p means that chance is unlikely.
-- A task that was played on one side only has no p.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param model String = '' : only this model; empty means all
-- param version Int64 = 1 : first version that counts as after
SELECT
    task,
    any(counted_before) AS before_count,
    any(counted_after) AS after_count,
    any(mean_before) AS before_mean,
    any(mean_after) AS after_mean,
    -- Where a side is empty the test fails the whole answer, so it is not brought to its end there.
    if(before_count > 0 AND after_count > 0,
        mannWhitneyUTestMergeOrDefaultIf('two-sided')(test, counted_before > 0 AND counted_after > 0).2, NULL) AS p
FROM
(
    SELECT
        task,
        countIf(NOT after) AS counted_before,
        countIf(after) AS counted_after,
        avgOrNullIf(reward, NOT after) AS mean_before,
        avgOrNullIf(reward, after) AS mean_after,
        mannWhitneyUTestState('two-sided')(reward, after) AS test
    FROM
    (
        SELECT task, assumeNotNull(value) AS reward, assumeNotNull(max_policy_version) >= {version:Int64} AS after
        FROM latest_scores(namespace = {namespace:String})
        WHERE value IS NOT NULL AND max_policy_version IS NOT NULL
            AND ({model:String} = '' OR model = {model:String})
    )
    GROUP BY task
)
GROUP BY task
ORDER BY task
