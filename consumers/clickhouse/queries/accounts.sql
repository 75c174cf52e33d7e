-- name: accounts
-- For every unit: emitted = used + dropped + pending. Trajectories and groups are of the run, and used means trained;
-- events and episodes are of the namespace, and used means part of a trajectory. A unit that was both used and dropped
-- counts as used, and in both_ways, which should be 0.
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
    -- Events with a drop of their own, as (episode, what was said): they leave the count of their episode. An array, like
    -- what was told of episodes below, as ClickHouse works a scalar out once and a table at each place that names it.
    (
        SELECT groupArray((episode_key, said))
        FROM
        (
            SELECT
                argMax(told.episode_key, told.episode_key != cityHash64('')) AS episode_key,
                toUInt32(max(if(lost.reason = 'duplicate_conflict', 100000, 300000) + indexOf(reasons, lost.reason))) AS said
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
        )
    ) AS own,
    own_drops AS (SELECT each.1 AS episode_key, each.2 AS said FROM (SELECT arrayJoin(own) AS each)),
    own_facts AS
    (
        SELECT toUInt32(greatest(own_drops.said, whole.said)) AS fact, count() AS events
        FROM own_drops
        LEFT JOIN
        (
            SELECT episode_key, max(said) AS said
            FROM episode_said
            WHERE episode_key IN (SELECT episode_key FROM own_drops)
            GROUP BY episode_key
        ) AS whole ON whole.episode_key = own_drops.episode_key
        GROUP BY fact
    ),
    -- By fact: episodes, events, and the episodes with events in several parts. A part holds an event once, so only they
    -- can have an event twice.
    (
        SELECT groupArray((fact, episodes, events, spread))
        FROM
        (
            SELECT
                fact,
                toInt64(sum(is_known)) AS episodes,
                toInt64(sum(number)) AS events,
                groupArrayIf(episode_key, in_parts) AS spread
            FROM
            (
                SELECT
                    episode_key,
                    max(said) AS fact,
                    max(known) AS is_known,
                    sum(number) AS number,
                    max(in_parts) AS in_parts
                FROM
                (
                    SELECT episode_key, said, true AS known, toInt64(0) AS number, false AS in_parts FROM episode_said
                    UNION ALL
                    SELECT episode_key, toUInt32(0), false, toInt64(count()),
                        groupBitOr(_part_index) != groupBitAnd(_part_index)
                    FROM events WHERE namespace = {namespace:String}
                    GROUP BY episode_key
                    UNION ALL
                    SELECT episode_key, toUInt32(0), false, toInt64(-1), false FROM own_drops
                )
                GROUP BY episode_key
            )
            GROUP BY fact
        )
    ) AS told_of_episodes,
    episode_facts AS
    (
        SELECT each.1 AS fact, each.2 AS episodes, each.3 AS events FROM (SELECT arrayJoin(told_of_episodes) AS each)
    ),
    spread AS
    (
        SELECT each.1 AS fact, arrayJoin(each.4) AS episode_key
        FROM (SELECT arrayJoin(told_of_episodes) AS each)
    ),
    repeated AS
    (
        SELECT spread.fact AS fact, toInt64(sum(twice.repeats)) AS events
        FROM
        (
            SELECT episode_key, count() - uniqExact(event_id) AS repeats
            FROM events
            WHERE namespace = {namespace:String} AND episode_key IN (SELECT episode_key FROM spread)
            GROUP BY episode_key
            HAVING repeats > 0
        ) AS twice
        INNER JOIN spread ON spread.episode_key = twice.episode_key
        GROUP BY fact
    ),
    -- A reward by alias that found its episode is here twice under one id; without its episode it is no event.
    found AS
    (
        SELECT toInt64(uniqExact(event_id)) AS events
        FROM rewards
        WHERE namespace = {namespace:String} AND episode_id != '' AND alias IS NOT NULL AND event_id IN
        (
            SELECT event_id FROM rewards WHERE namespace = {namespace:String} AND episode_id = ''
        )
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
        SELECT 'event', fact, false, toInt64(events) FROM own_facts
        UNION ALL
        SELECT 'event', fact, false, -events FROM repeated
        UNION ALL
        SELECT 'event', toUInt32(0), false, -events FROM found
        UNION ALL
        SELECT 'trajectory', fact, final, toInt64(count()) FROM trajectory_facts GROUP BY fact, final
        UNION ALL
        SELECT 'group', fact, final, toInt64(count()) FROM group_facts GROUP BY fact, final
    )
)
GROUP BY unit
ORDER BY indexOf(['event', 'episode', 'trajectory', 'group'], unit)
