-- name: accounts
-- What was emitted = what was used + dropped + pending, for every unit. Trajectories and groups are of the run, and used
-- means trained; events and episodes are of the namespace, and used means part of a trajectory. What was both used and
-- dropped is counted as used, and shows in both_ways, which should be 0.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
WITH
    (
        SELECT arraySort(groupUniqArray(why))
        FROM
        (
            SELECT toString(reason) AS why FROM drops WHERE namespace = {namespace:String}
            UNION ALL
            SELECT toString(reason) FROM drop_trajectories WHERE namespace = {namespace:String}
            UNION ALL
            SELECT ifNull(toString(reason), '') FROM step_members
            WHERE namespace = {namespace:String} AND run_id = {run:String}
        )
    ) AS reasons,
    -- A fact about a unit is one number, weight × 100000 + place of the reason: of several, the greatest counts. Weights:
    -- 0 pending, 1 dropped, 2 used, 3 dropped for itself, whatever became of its whole. A unit's id is eight bytes of
    -- hash: a million of them are grouped and joined several times faster than by text.
    -- An episode without an EpisodeStarted is known by its drop alone.
    episode_facts AS
    (
        SELECT episode_key, max(said) AS fact
        FROM
        (
            SELECT cityHash64(episode_id) AS episode_key, toUInt32(0) AS said
            FROM episodes WHERE namespace = {namespace:String}
            UNION ALL
            SELECT cityHash64(episode_id), toUInt32(200000)
            FROM trajectories WHERE namespace = {namespace:String}
            UNION ALL
            SELECT cityHash64(unit_id), toUInt32(100000 + indexOf(reasons, toString(reason)))
            FROM drops WHERE namespace = {namespace:String} AND unit = 'episode'
        )
        GROUP BY episode_key
    ),
    event_facts AS
    (
        SELECT event_key, max(said) AS fact
        FROM
        (
            SELECT each.event_key AS event_key, whole.fact AS said
            FROM
            (
                SELECT cityHash64(event_id) AS event_key, cityHash64(episode_id) AS episode_key
                FROM events WHERE namespace = {namespace:String}
            ) AS each
            LEFT JOIN episode_facts AS whole ON whole.episode_key = each.episode_key
            UNION ALL
            SELECT cityHash64(unit_id),
                toUInt32(if(reason = 'duplicate_conflict', 100000, 300000) + indexOf(reasons, toString(reason)))
            FROM drops
            WHERE namespace = {namespace:String} AND run_id = '' AND unit = 'event'
                AND unit_id IN
                (
                    SELECT event_id FROM events
                    WHERE namespace = {namespace:String} AND event_id IN
                    (
                        SELECT unit_id FROM drops
                        WHERE namespace = {namespace:String} AND run_id = '' AND unit = 'event'
                    )
                )
        )
        GROUP BY event_key
    ),
    trajectory_facts AS
    (
        SELECT trajectory_key, max(said) AS fact, max(is_final) AS final
        FROM
        (
            SELECT trajectory_key, toUInt32(0) AS said, false AS is_final
            FROM trajectories WHERE namespace = {namespace:String}
            UNION ALL
            SELECT trajectory_key,
                toUInt32(if(fate = 'trained', 200000, 100000) + indexOf(reasons, ifNull(toString(reason), ''))), false
            FROM step_members WHERE namespace = {namespace:String} AND run_id = {run:String}
            UNION ALL
            SELECT trajectory_key, toUInt32(100000 + indexOf(reasons, toString(reason))), true
            FROM drop_trajectories WHERE namespace = {namespace:String} AND run_id IN ('', {run:String})
        )
        GROUP BY trajectory_key
    ),
    group_facts AS
    (
        SELECT group_key, max(said) AS fact, max(is_final) AS final
        FROM
        (
            SELECT cityHash64(group_id) AS group_key, toUInt32(0) AS said, false AS is_final
            FROM groups WHERE namespace = {namespace:String} AND run_id = {run:String}
            UNION ALL
            SELECT cityHash64(group_id),
                toUInt32(if(fate = 'trained', 200000, 100000) + indexOf(reasons, ifNull(toString(reason), ''))), false
            FROM step_members WHERE namespace = {namespace:String} AND run_id = {run:String}
            UNION ALL
            SELECT cityHash64(unit_id), toUInt32(100000 + indexOf(reasons, toString(reason))), true
            FROM drops WHERE namespace = {namespace:String} AND run_id = {run:String} AND unit = 'group'
            UNION ALL
            -- A group of which every member was dropped.
            SELECT members.group_key, toUInt32(100000 + max(lost.place)), false
            FROM
            (
                SELECT cityHash64(group_id) AS group_key, trajectory_key
                FROM group_members WHERE namespace = {namespace:String} AND run_id = {run:String}
            ) AS members
            LEFT JOIN
            (
                SELECT trajectory_key, max(indexOf(reasons, toString(reason))) AS place
                FROM drop_trajectories WHERE namespace = {namespace:String} AND run_id = {run:String}
                GROUP BY trajectory_key
            ) AS lost ON lost.trajectory_key = members.trajectory_key
            GROUP BY members.group_key
            HAVING min(lost.place) > 0
        )
        GROUP BY group_key
    )
SELECT
    unit,
    sum(units) AS emitted,
    sumIf(units, weight = 2) AS used,
    sumIf(units, weight IN (1, 3)) AS dropped,
    sumIf(units, weight = 0) AS pending,
    sumIf(units, weight = 2 AND final) AS both_ways,
    mapFilter(
        (reason, number) -> number > 0,
        sumMap(map(if(weight IN (1, 3), reasons[fact % 100000], ''), if(weight IN (1, 3), units, 0)))
    ) AS dropped_by_reason
FROM
(
    SELECT unit, fact, final, units, intDiv(fact, 100000) AS weight
    FROM
    (
        SELECT 'event' AS unit, fact, false AS final, count() AS units FROM event_facts GROUP BY fact
        UNION ALL
        SELECT 'episode', fact, false, count() FROM episode_facts GROUP BY fact
        UNION ALL
        SELECT 'trajectory', fact, final, count() FROM trajectory_facts GROUP BY fact, final
        UNION ALL
        SELECT 'group', fact, final, count() FROM group_facts GROUP BY fact, final
    )
)
GROUP BY unit
ORDER BY indexOf(['event', 'episode', 'trajectory', 'group'], unit)
