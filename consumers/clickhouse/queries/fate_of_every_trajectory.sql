-- name: fate_of_every_trajectory
-- The fate of all trajectories of a run: trained, dropped (by stage and reason) or pending; the last row is the sum.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
SELECT
    if(grouping(found) = 1, 'all', found) AS fate,
    stage,
    reason,
    count() AS trajectories,
    ifNotFinite(trajectories / max(trajectories) OVER (), 0) AS share,
    countIf(trained_again) AS more_than_once
FROM
(
    SELECT fate AS found, stage, reason, trained_again
    FROM trajectory_fates(namespace = {namespace:String}, run = {run:String})
)
GROUP BY GROUPING SETS ((found, stage, reason), ())
ORDER BY multiIf(fate = 'trained', 0, fate = 'dropped', 1, fate = 'pending', 2, 3), trajectories DESC, stage, reason
