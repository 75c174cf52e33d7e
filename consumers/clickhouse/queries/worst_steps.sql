-- name: worst_steps
-- Steps at the end of one metric, with what they were trained on: groups, rewards, lags, and their groups' ids.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
-- param metric String = 'entropy' : metric of the step
-- param worst String = 'lowest' : lowest or highest
-- param limit UInt32 = 5 : how many steps
WITH chosen AS
(
    SELECT step, policy_version, metrics[{metric:String}] AS metric
    FROM steps FINAL
    WHERE namespace = {namespace:String} AND run_id = {run:String} AND state = 'completed'
        AND mapContains(metrics, {metric:String})
    ORDER BY if({worst:String} = 'highest', -metric, metric), step
    LIMIT {limit:UInt32}
)
SELECT
    chosen.step AS step,
    any(chosen.policy_version) AS policy_version,
    any(chosen.metric) AS metric,
    uniqExact(members.group_id) AS groups,
    count() AS trajectories,
    countIf(members.fate = 'dropped') AS dropped,
    avg(group_members.reward) AS reward_mean,
    avg(members.lag) AS lag_mean,
    max(members.lag) AS lag_max,
    groupUniqArray(20)(members.group_id) AS group_ids
FROM chosen
INNER JOIN
(
    SELECT step, group_id, trajectory_id, fate, lag
    FROM step_members FINAL
    WHERE namespace = {namespace:String} AND run_id = {run:String} AND step IN (SELECT step FROM chosen)
) AS members ON members.step = chosen.step
LEFT JOIN
(
    SELECT group_id, trajectory_id, toNullable(reward) AS reward
    FROM group_members FINAL
    WHERE namespace = {namespace:String} AND run_id = {run:String}
        AND group_id IN
        (
            SELECT group_id FROM step_members
            WHERE namespace = {namespace:String} AND run_id = {run:String} AND step IN (SELECT step FROM chosen)
        )
) AS group_members
    ON group_members.group_id = members.group_id AND group_members.trajectory_id = members.trajectory_id
GROUP BY step
ORDER BY if({worst:String} = 'highest', -metric, metric), step
