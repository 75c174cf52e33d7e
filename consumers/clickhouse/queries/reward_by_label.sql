-- name: reward_by_label
-- Mean reward by the values of one label, such as tenant or user, with the share of the trajectories that were trained.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
-- param label String = 'user' : name of the label
-- param limit UInt32 = 100 : most rows, those with most trajectories first
SELECT
    labels[{label:String}] AS label,
    count() AS trajectories,
    avg(value) AS reward_mean,
    countIf(trajectory_key IN
    (
        SELECT trajectory_key FROM step_members
        WHERE namespace = {namespace:String} AND run_id = {run:String} AND fate = 'trained'
    )) / trajectories AS trained_share,
    sum(sampled_tokens) AS sampled_tokens
FROM latest_scores(namespace = {namespace:String})
WHERE mapContains(labels, {label:String})
GROUP BY label
ORDER BY trajectories DESC, label
LIMIT {limit:UInt32}
