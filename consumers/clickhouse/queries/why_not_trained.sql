-- name: why_not_trained
-- Every decision about one trajectory, episode or group: its scores, groups, drops and steps, in order.
-- A decision about an episode or group as a whole has no trajectory_id. A group_mismatch shows both prompts. An episode that is still open says until when.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
-- param id String = '' : trajectory, episode or group id, or an episode's alias
-- id id = trajectory, episode, group
WITH
    -- an array, as ClickHouse works a scalar out once and a table at each place that names it
    (
        SELECT groupUniqArray(trajectory_id)
        FROM
        (
            SELECT trajectory_id FROM trajectories
            WHERE namespace = {namespace:String} AND (trajectory_id = {id:String} OR episode_id = {id:String})
            UNION ALL
            SELECT trajectory_id FROM group_members
            WHERE namespace = {namespace:String} AND run_id = {run:String} AND group_id = {id:String}
            UNION ALL
            SELECT trajectory_id FROM drop_trajectories
            WHERE namespace = {namespace:String} AND run_id IN ('', {run:String})
                AND (trajectory_id = {id:String} OR unit_id = {id:String})
        )
    ) AS ids,
    prompts AS
    (
        SELECT unit_id AS trajectory_id, dropped_at, pair.1 AS what, pair.2 AS began_by FROM drops FINAL
        ARRAY JOIN [('its prompt', unit_id), ('prompt of its group', extract(detail, '\\(([^()]+)\\), and this'))] AS pair
        WHERE namespace = {namespace:String} AND run_id = {run:String} AND reason = 'group_mismatch'
            AND unit_id IN (SELECT arrayJoin(ids))
    )
SELECT trajectory_id, at, stage, what, detail, kafka_topic, kafka_partition, kafka_offset
FROM
(
    SELECT 0 AS rank, '' AS trajectory_id, began_at AS at, 'assembly' AS stage,
        multiIf(has_ended, 'open: it has ended, and events are missing',
            is_paused, 'open: it has paused, and nothing has resumed it', 'open: it has not ended') AS what,
        concat('newest event at ', toString(newest_event_at), if(given_up_at IS NULL, '; no worker has assembled it',
            concat('; without another it is given up at ', toString(assumeNotNull(given_up_at))))) AS detail,
        '' AS kafka_topic, 0 AS kafka_partition, 0 AS kafka_offset
    FROM open_among(namespace = {namespace:String}, episode = {id:String})
    WHERE {id:String} != ''
    UNION ALL
    SELECT 1, trajectory_id, assembled_at, 'assembly',
        concat('assembled', if(closed_by = 'ended', '', concat(', closed by ', closed_by)),
            if(trainable, '', ', not trainable')),
        ifNull(untrainable_reason, ''),
        kafka_topic, kafka_partition, kafka_offset
    FROM trajectories FINAL
    WHERE namespace = {namespace:String} AND trajectory_id IN (SELECT arrayJoin(ids))
    UNION ALL
    SELECT 2, trajectory_id, kafka_timestamp, 'scoring', outcome,
        concat('reward ', ifNull(toString(value), 'none'), ', revision ', toString(revision),
            if(excluded, ', excluded', ''), if(error IS NULL, '', concat(', ', assumeNotNull(error)))),
        kafka_topic, kafka_partition, kafka_offset
    FROM scores FINAL
    WHERE namespace = {namespace:String} AND trajectory_id IN (SELECT arrayJoin(ids))
    UNION ALL
    SELECT 3, trajectory_id, closed_at, 'grouping', concat('in group ', group_id),
        concat('reward ', toString(reward), ', advantage ', toString(advantage)),
        kafka_topic, kafka_partition, kafka_offset
    FROM group_members FINAL
    WHERE namespace = {namespace:String} AND run_id = {run:String}
        AND trajectory_id IN (SELECT arrayJoin(ids))
    UNION ALL
    SELECT 4, fates.trajectory_id, fates.dropped_at, fates.stage, concat('dropped: ', fates.reason), drops.detail,
        fates.kafka_topic, fates.kafka_partition, fates.kafka_offset
    FROM
    (
        SELECT *
        FROM drop_trajectories FINAL
        WHERE namespace = {namespace:String} AND run_id IN ('', {run:String})
            AND trajectory_id IN (SELECT arrayJoin(ids))
    ) AS fates
    LEFT JOIN
    (
        SELECT * FROM drops FINAL
        WHERE namespace = {namespace:String} AND run_id IN ('', {run:String}) AND unit_id IN
        (
            SELECT unit_id FROM drop_trajectories
            WHERE namespace = {namespace:String} AND trajectory_id IN (SELECT arrayJoin(ids))
        )
    ) AS drops
        ON drops.run_id = fates.run_id AND drops.unit_id = fates.unit_id
        AND drops.reason = fates.reason AND drops.stage = fates.stage
    UNION ALL
    SELECT 4, '', dropped_at, stage, concat('dropped: ', reason), detail, kafka_topic, kafka_partition, kafka_offset
    FROM drops FINAL
    WHERE namespace = {namespace:String} AND run_id IN ('', {run:String}) AND unit IN ('episode', 'group')
        AND unit_id = {id:String} AND trajectories = 0
    UNION ALL
    SELECT 4, prompts.trajectory_id, prompts.dropped_at, 'grouping', prompts.what, openings.messages, '', 0, 0
    FROM prompts
    INNER JOIN
    (
        SELECT trajectory_id, any(event_id) AS first_turn FROM trajectory_turns
        WHERE namespace = {namespace:String} AND trajectory_id IN (SELECT began_by FROM prompts) AND turn = 0
        GROUP BY trajectory_id
    ) AS first_turns ON first_turns.trajectory_id = prompts.began_by
    INNER JOIN
    (
        SELECT event_id, any(added_messages) AS messages FROM turns
        WHERE namespace = {namespace:String} AND episode_id IN
        (
            SELECT episode_id FROM trajectories
            WHERE namespace = {namespace:String} AND trajectory_id IN (SELECT began_by FROM prompts)
        )
        GROUP BY event_id
    ) AS openings ON openings.event_id = first_turns.first_turn
    UNION ALL
    SELECT 5, trajectory_id, ended_at, 'trainer', concat(fate, ' in step ', toString(step)),
        if(fate = 'trained', concat('lag ', toString(ifNull(lag, 0))), ifNull(reason, '')),
        kafka_topic, kafka_partition, kafka_offset
    FROM step_members FINAL
    WHERE namespace = {namespace:String} AND run_id = {run:String}
        AND trajectory_id IN (SELECT arrayJoin(ids))
)
ORDER BY trajectory_id, rank, at
