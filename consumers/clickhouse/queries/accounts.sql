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
    episode_said AS
    (
        SELECT episode_key, toUInt32(0) AS said FROM episodes WHERE namespace = {namespace:String}
        UNION ALL
        SELECT episode_key, toUInt32(200000) FROM trajectories WHERE namespace = {namespace:String}
        UNION ALL
        SELECT cityHash64(unit_id), toUInt32(100000 + indexOf(reasons, reason))
        FROM drops WHERE namespace = {namespace:String} AND unit = 'episode'
    ),
    -- Events with a drop of their own: they leave the count of their episode.
    own_drops AS
    (
        SELECT
            told.event_id AS event_id,
            any(told.episode_key) AS episode_key,
            max(if(lost.reason = 'duplicate_conflict', 100000, 300000) + indexOf(reasons, lost.reason)) AS said
        FROM
        (
            SELECT event_id, episode_key FROM events
            WHERE namespace = {namespace:String} AND event_id IN
            (
                SELECT unit_id FROM drops WHERE namespace = {namespace:String} AND run_id = '' AND unit = 'event'
            )
        ) AS told
        INNER JOIN
        (
            SELECT unit_id, reason FROM drops
            WHERE namespace = {namespace:String} AND run_id = '' AND unit = 'event'
        ) AS lost ON lost.unit_id = told.event_id
        GROUP BY told.event_id
    ),
    own_facts AS
    (
        SELECT own.event_id, toUInt32(greatest(any(own.said), max(whole.said))) AS fact
        FROM own_drops AS own
        LEFT JOIN
        (
            SELECT episode_key, said FROM episode_said WHERE episode_key IN (SELECT episode_key FROM own_drops)
        ) AS whole ON whole.episode_key = own.episode_key
        GROUP BY own.event_id
    ),
    -- A part holds an event once, so only an episode with rows in several parts can have an event twice.
    repeated AS
    (
        SELECT episode_key, toInt64(count()) - toInt64(uniqExact(event_id)) AS repeats
        FROM events
        WHERE namespace = {namespace:String} AND episode_key IN
        (
            SELECT episode_key FROM events WHERE namespace = {namespace:String}
            GROUP BY episode_key
            HAVING groupBitOr(_part_index) != groupBitAnd(_part_index)
        )
        GROUP BY episode_key
        HAVING repeats > 0
    ),
    episode_facts AS
    (
        SELECT fact, toInt64(sum(is_known)) AS episodes, sum(events) AS events
        FROM
        (
            SELECT episode_key, max(said) AS fact, max(known) AS is_known, sum(number) AS events
            FROM
            (
                SELECT episode_key, said, 1 AS known, toInt64(0) AS number FROM episode_said
                UNION ALL
                SELECT episode_key, toUInt32(0), 0, toInt64(count())
                FROM events WHERE namespace = {namespace:String}
                GROUP BY episode_key
                UNION ALL
                SELECT episode_key, toUInt32(0), 0, -repeats FROM repeated
                UNION ALL
                SELECT episode_key, toUInt32(0), 0, toInt64(-1) FROM own_drops
            )
            GROUP BY episode_key
        )
        GROUP BY fact
    ),
    trajectory_facts AS
    (
        SELECT trajectory_key, max(said) AS fact, max(is_final) AS final
        FROM
        (
            SELECT trajectory_key, toUInt32(0) AS said, false AS is_final
            FROM trajectories WHERE namespace = {namespace:String}
            UNION ALL
            SELECT trajectory_key, toUInt32(200000), false
            FROM step_members WHERE namespace = {namespace:String} AND run_id = {run:String} AND fate = 'trained'
            UNION ALL
            SELECT trajectory_key, toUInt32(100000 + indexOf(reasons, ifNull(toString(reason), ''))), false
            FROM step_members WHERE namespace = {namespace:String} AND run_id = {run:String} AND fate = 'dropped'
            UNION ALL
            SELECT trajectory_key, toUInt32(100000 + indexOf(reasons, reason)), true
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
            SELECT cityHash64(group_id), toUInt32(200000), false
            FROM step_members WHERE namespace = {namespace:String} AND run_id = {run:String} AND fate = 'trained'
            UNION ALL
            SELECT cityHash64(group_id), toUInt32(100000 + indexOf(reasons, ifNull(toString(reason), ''))), false
            FROM step_members WHERE namespace = {namespace:String} AND run_id = {run:String} AND fate = 'dropped'
            UNION ALL
            SELECT cityHash64(unit_id), toUInt32(100000 + indexOf(reasons, reason)), true
            FROM drops WHERE namespace = {namespace:String} AND run_id = {run:String} AND unit = 'group'
            UNION ALL
            -- A group of which every member was dropped, one by one.
            SELECT members.group_key, toUInt32(100000 + max(lost.place)), false
            FROM
            (
                SELECT cityHash64(group_id) AS group_key, trajectory_key
                FROM group_members WHERE namespace = {namespace:String} AND run_id = {run:String}
            ) AS members
            LEFT JOIN
            (
                SELECT trajectory_key, max(indexOf(reasons, reason)) AS place
                FROM drop_trajectories
                WHERE namespace = {namespace:String} AND run_id = {run:String} AND unit != 'group'
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
        SELECT each.1 AS unit, fact, false AS final, each.2 AS units
        FROM (SELECT fact, arrayJoin([('event', events), ('episode', episodes)]) AS each FROM episode_facts)
        UNION ALL
        SELECT 'event', fact, false, toInt64(count()) FROM own_facts GROUP BY fact
        UNION ALL
        SELECT 'trajectory', fact, final, toInt64(count()) FROM trajectory_facts GROUP BY fact, final
        UNION ALL
        SELECT 'group', fact, final, toInt64(count()) FROM group_facts GROUP BY fact, final
    )
)
GROUP BY unit
ORDER BY indexOf(['event', 'episode', 'trajectory', 'group'], unit)
