-- name: share_by_source
-- Who had most of each training step: share by the values of a label such as user, rewards against the others', and what a bound on shares kept out.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
-- param label String = 'user' : name of the label
-- param limit UInt32 = 100 : most rows, the largest shares first
SELECT
    step,
    source,
    trained,
    if(trained = 0, 0, trained / sum(trained) OVER (PARTITION BY step)) AS share,
    rewards / nullIf(rewarded, 0) AS reward_mean,
    (sum(rewards) OVER (PARTITION BY step) - ifNull(rewards, 0))
        / nullIf(sum(rewarded) OVER (PARTITION BY step) - rewarded, 0) AS reward_mean_of_others,
    kept_out
FROM
(
    SELECT
        found.step AS step,
        scores.source AS source,
        countIf(found.fate = 'trained') AS trained,
        count(scores.value) AS rewarded, -- a reward that was taken back is none
        sum(scores.value) AS rewards,
        countIf(found.reason = 'source_share') AS kept_out
    FROM
    (
        SELECT step, trajectory_key, fate, reason FROM step_members FINAL
        WHERE namespace = {namespace:String} AND run_id = {run:String}
    ) AS found
    INNER JOIN
    (
        SELECT trajectory_key, labels[{label:String}] AS source, value
        FROM latest_scores(namespace = {namespace:String})
    ) AS scores ON scores.trajectory_key = found.trajectory_key
    GROUP BY step, source
)
ORDER BY share DESC, step DESC, source
LIMIT {limit:UInt32}
