-- name: fate_of_every_trajectory
-- What became of all trajectories of a run: trained, dropped (by stage and reason) or pending; the last row is the sum.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
WITH fates AS
(
    SELECT * FROM trajectory_fates(namespace = {namespace:String}, run = {run:String})
)
SELECT fate, stage, reason, trajectories, share, more_than_once
FROM
(
    SELECT
        fate,
        stage,
        reason,
        count() AS trajectories,
        count() / (SELECT count() FROM fates) AS share,
        countIf(times_trained > 1) AS more_than_once,
        multiIf(fate = 'trained', 0, fate = 'dropped', 1, 2) AS position
    FROM fates
    GROUP BY fate, stage, reason
    UNION ALL
    SELECT 'all', '', '', count(), if(count() = 0, 0, 1), countIf(times_trained > 1), 3
    FROM fates
)
ORDER BY position, trajectories DESC, stage, reason
