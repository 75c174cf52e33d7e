-- name: lineage_of_event
-- The way back from one event, by its id or its place in the log: episode, trajectory, groups, batches, steps, versions.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param id String = '' : event id; leave it empty to name the place
-- param topic String = 'episode-events' : topic without the prefix
-- param partition Int32 = 0 : partition
-- param offset Int64 = -1 : offset
-- id id = event or offset
WITH
    (
        SELECT groupUniqArray((event_id, toString(kind), episode_id, toString(kafka_topic), kafka_partition, kafka_offset))
        FROM
        (
            SELECT event_id, kind, episode_id, kafka_topic, kafka_partition, kafka_offset
            FROM events FINAL
            WHERE namespace = {namespace:String} AND {id:String} != '' AND event_id = {id:String}
            UNION ALL
            SELECT event_id, kind, episode_id, kafka_topic, kafka_partition, kafka_offset
            FROM events FINAL
            WHERE namespace = {namespace:String} AND {id:String} = '' AND kafka_topic = {topic:String}
                AND kafka_partition = {partition:Int32} AND kafka_offset = {offset:Int64}
        )
    ) AS found,
    (
        SELECT groupUniqArray((trajectory_id, episode_id))
        FROM trajectories
        WHERE namespace = {namespace:String} AND episode_id IN (SELECT arrayJoin(found).3)
    ) AS assembled
SELECT
    event.1 AS event_id,
    event.2 AS kind,
    event.4 AS kafka_topic,
    event.5 AS kafka_partition,
    event.6 AS kafka_offset,
    event.3 AS episode_id,
    turns.turn AS turn,
    events.trajectory_id AS trajectory_id,
    members.run_id AS run_id,
    members.group_id AS group_id,
    members.reward AS reward,
    steps.batch_hash AS batch,
    steps.step AS step,
    steps.fate AS fate,
    steps.reason AS reason,
    steps.lag AS lag,
    steps.advantage AS advantage,
    steps.policy_version AS policy_version
FROM
(
    SELECT arrayJoin(found) AS event, arrayFirst(pair -> pair.2 = event.3, assembled).1 AS trajectory_id
) AS events
LEFT JOIN
(
    SELECT event_id, toNullable(turn) AS turn
    FROM trajectory_turns FINAL
    WHERE namespace = {namespace:String} AND trajectory_id IN (SELECT arrayJoin(assembled).1)
) AS turns ON turns.event_id = events.event.1
LEFT JOIN
(
    SELECT run_id, group_id, trajectory_id, toNullable(reward) AS reward
    FROM group_members FINAL
    WHERE namespace = {namespace:String} AND trajectory_id IN (SELECT arrayJoin(assembled).1)
) AS members ON members.trajectory_id = events.trajectory_id
LEFT JOIN
(
    SELECT run_id, group_id, trajectory_id, batch_hash, step, fate, reason, lag, advantage, policy_version
    FROM step_members FINAL
    WHERE namespace = {namespace:String} AND trajectory_id IN (SELECT arrayJoin(assembled).1)
) AS steps
    ON steps.run_id = members.run_id
    AND steps.group_id = members.group_id
    AND steps.trajectory_id = events.trajectory_id
ORDER BY run_id, step
