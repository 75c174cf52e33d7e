-- name: events_of_step
-- One step traced to its batch, groups, trajectories, turns and events, each event with its Kafka coordinates, in the
-- order of the log. A row is an event; lineage_of_step has a row for each member.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
-- param step Int64 = 0 : number of the step; 0 means the newest that has members
-- id step = step
WITH
    -- Each table is read once, by the ids that the one before it gave: the reading itself is the least of a read's time.
    (
        SELECT groupUniqArray((step, batch_hash, group_id, trajectory_id, toString(fate), lag, advantage))
        FROM step_members
        WHERE namespace = {namespace:String} AND run_id = {run:String} AND step = if({step:Int64} != 0, {step:Int64}, (
            SELECT max(step) FROM step_members
            WHERE namespace = {namespace:String} AND run_id = {run:String} AND {step:Int64} = 0
        ))
    ) AS found,
    (
        SELECT groupUniqArray((trajectory_id, episode_id, event_id, turn, policy_version))
        FROM trajectory_turns
        WHERE namespace = {namespace:String} AND trajectory_id IN (SELECT arrayJoin(found).4)
    ) AS sampled
SELECT
    members.member.1 AS step,
    members.member.2 AS batch,
    positions.position AS position,
    members.member.3 AS group_id,
    members.member.4 AS trajectory_id,
    members.member.5 AS fate,
    members.member.6 AS lag,
    members.member.7 AS advantage,
    episodes.pair.2 AS episode_id,
    turns.turn AS turn,
    turns.policy_version AS sampled_by,
    events.kind AS kind,
    events.event_id AS event_id,
    events.occurred_at AS occurred_at,
    events.kafka_topic AS kafka_topic,
    events.kafka_partition AS kafka_partition,
    events.kafka_offset AS kafka_offset
FROM (SELECT arrayJoin(found) AS member) AS members
LEFT JOIN
(
    SELECT group_id, position
    FROM batch_groups
    WHERE namespace = {namespace:String} AND run_id = {run:String} AND batch_hash IN (SELECT arrayJoin(found).2)
    LIMIT 1 BY group_id
) AS positions ON positions.group_id = members.member.3
LEFT JOIN
(
    SELECT arrayJoin(arrayDistinct(arrayMap(one -> (one.1, one.2), sampled))) AS pair
) AS episodes ON episodes.pair.1 = members.member.4
LEFT JOIN
(
    SELECT event_id, kind, episode_id, occurred_at, kafka_topic, kafka_partition, kafka_offset
    FROM events
    WHERE namespace = {namespace:String} AND episode_id IN (SELECT arrayJoin(sampled).2)
    ORDER BY kafka_offset
    LIMIT 1 BY event_id
) AS events ON events.episode_id = episodes.pair.2
LEFT JOIN
(
    SELECT one.3 AS event_id, toNullable(one.4) AS turn, one.5 AS policy_version
    FROM (SELECT arrayJoin(sampled) AS one)
    LIMIT 1 BY event_id
) AS turns ON turns.event_id = events.event_id
ORDER BY position, trajectory_id, kafka_topic, kafka_partition, kafka_offset
