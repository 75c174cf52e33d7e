-- name: accounts
-- What was emitted = what was used + dropped + pending, for every unit. Trajectories and groups are of the run, and used
-- means trained; events and episodes are of the namespace, and used means part of a trajectory. What was both used and
-- dropped is counted as used, and shows in both_ways, which should be 0.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
WITH
    -- An episode without an EpisodeStarted is known by its drop alone.
    episode_fates AS
    (
        SELECT episode_id, max(is_used) AS used, argMax(why, why != '') AS reason
        FROM
        (
            SELECT episode_id, false AS is_used, '' AS why FROM episodes WHERE namespace = {namespace:String}
            UNION ALL
            SELECT episode_id, true, '' FROM trajectories WHERE namespace = {namespace:String}
            UNION ALL
            SELECT unit_id, false, reason FROM drops WHERE namespace = {namespace:String} AND unit = 'episode'
        )
        GROUP BY episode_id
    ),
    -- Weight decides which of several facts about a unit counts: what is said of its parts or its whole weighs less.
    told AS
    (
        SELECT 'trajectory' AS unit, trajectory_id AS id, 'pending' AS fate, '' AS reason, 0 AS weight, false AS final
        FROM trajectories WHERE namespace = {namespace:String}
        UNION ALL
        SELECT 'trajectory', trajectory_id, if(fate = 'trained', 'used', 'dropped'), ifNull(reason, ''),
            if(fate = 'trained', 2, 1), false
        FROM step_members WHERE namespace = {namespace:String} AND run_id = {run:String}
        UNION ALL
        SELECT 'trajectory', trajectory_id, 'dropped', reason, 1, true
        FROM drop_trajectories WHERE namespace = {namespace:String} AND run_id IN ('', {run:String})
        UNION ALL
        SELECT 'group', group_id, 'pending', '', 0, false
        FROM groups WHERE namespace = {namespace:String} AND run_id = {run:String}
        UNION ALL
        SELECT 'group', group_id, if(fate = 'trained', 'used', 'dropped'), ifNull(reason, ''),
            if(fate = 'trained', 2, 1), false
        FROM step_members WHERE namespace = {namespace:String} AND run_id = {run:String}
        UNION ALL
        SELECT 'group', unit_id, 'dropped', reason, 1, true
        FROM drops WHERE namespace = {namespace:String} AND run_id = {run:String} AND unit = 'group'
        UNION ALL
        SELECT 'group', group_id, 'dropped', any(lost.reason), 1, false
        FROM group_members
        LEFT JOIN
        (
            SELECT trajectory_id, any(reason) AS reason
            FROM drop_trajectories WHERE namespace = {namespace:String} AND run_id = {run:String}
            GROUP BY trajectory_id
        ) AS lost ON lost.trajectory_id = group_members.trajectory_id
        WHERE namespace = {namespace:String} AND run_id = {run:String}
        GROUP BY group_id
        HAVING min(lost.reason) != ''
        UNION ALL
        SELECT 'episode', episode_id, multiIf(used, 'used', reason != '', 'dropped', 'pending'),
            if(used, '', reason), 0, false
        FROM episode_fates
        UNION ALL
        SELECT 'event', event_id, multiIf(whole.used, 'used', whole.reason != '', 'dropped', 'pending'),
            if(whole.used, '', whole.reason), if(whole.used, 2, if(whole.reason != '', 1, 0)), false
        FROM (SELECT event_id, episode_id FROM events WHERE namespace = {namespace:String}) AS each
        LEFT JOIN episode_fates AS whole ON whole.episode_id = each.episode_id
        UNION ALL
        SELECT 'event', unit_id, 'dropped', reason, if(reason = 'duplicate_conflict', 1, 3), false
        FROM drops
        WHERE namespace = {namespace:String} AND run_id = '' AND unit = 'event'
            AND unit_id IN (SELECT event_id FROM events WHERE namespace = {namespace:String})
    )
SELECT
    unit,
    count() AS emitted,
    countIf(settled = 'used') AS used,
    countIf(settled = 'dropped') AS dropped,
    countIf(settled = 'pending') AS pending,
    countIf(twice) AS both_ways,
    mapFilter((reason, number) -> number > 0, sumMap(map(why, toUInt64(settled = 'dropped')))) AS dropped_by_reason
FROM
(
    SELECT
        unit,
        id,
        argMax(fate, (weight, reason)) AS settled,
        argMax(reason, (weight, reason)) AS why,
        max(fate = 'used') AND max(fate = 'dropped' AND final) AS twice
    FROM told
    GROUP BY unit, id
)
GROUP BY unit
ORDER BY indexOf(['event', 'episode', 'trajectory', 'group'], unit)
