-- name: fate_of_every_trajectory
-- The fate of every episode that began, in a run: trained, dropped (by stage and reason) or pending; or open, without a
-- trajectory so far, or dropped without ever having one. The last row is the sum.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
SELECT
    if(grouping(found) = 1, 'all', found) AS fate,
    stage,
    reason,
    sum(number) AS trajectories,
    ifNotFinite(trajectories / max(trajectories) OVER (), 0) AS share,
    sum(again) AS more_than_once
FROM
(
    SELECT fate AS found, stage, reason, trajectories AS number, trained_again AS again
    FROM counted_fates(namespace = {namespace:String}, run = {run:String})
    UNION ALL
    SELECT 'open', 'assembly', if(is_paused, 'paused', ''), 1, 0
    FROM open_episodes(namespace = {namespace:String})
    UNION ALL
    SELECT 'dropped', stage, reason, 1, 0
    FROM
    (
        SELECT toString(any(stage)) AS stage, toString(any(reason)) AS reason
        FROM drops
        WHERE namespace = {namespace:String} AND unit = 'episode'
            AND cityHash64(unit_id) NOT IN
            (
                SELECT episode_key FROM trajectories
                WHERE namespace = {namespace:String} AND episode_key IN
                (
                    SELECT cityHash64(unit_id) FROM drops WHERE namespace = {namespace:String} AND unit = 'episode'
                )
            )
        GROUP BY unit_id
    )
)
GROUP BY GROUPING SETS ((found, stage, reason), ())
ORDER BY multiIf(fate = 'trained', 0, fate = 'dropped', 1, fate = 'pending', 2, fate = 'open', 3, 4), trajectories DESC, stage, reason
