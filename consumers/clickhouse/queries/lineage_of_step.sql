-- name: lineage_of_step
-- One step traced to its batch, groups, trajectories, turns and events, each event with its Kafka coordinates.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
-- param step Int64 = 0 : number of the step; 0 means the newest that has members
WITH
    (
        SELECT if({step:Int64} = 0, (
            SELECT max(step) FROM step_members WHERE namespace = {namespace:String} AND run_id = {run:String}
        ), {step:Int64})
    ) AS chosen,
    (
        SELECT groupArray(trajectory_id)
        FROM step_members
        WHERE namespace = {namespace:String} AND run_id = {run:String} AND step = chosen
    ) AS trajectory_ids,
    (
        SELECT groupUniqArray((trajectory_id, episode_id))
        FROM trajectories
        WHERE namespace = {namespace:String} AND trajectory_id IN (SELECT arrayJoin(trajectory_ids))
    ) AS assembled
SELECT
    members.step AS step,
    members.batch_hash AS batch,
    positions.position AS position,
    members.group_id AS group_id,
    members.trajectory_id AS trajectory_id,
    members.fate AS fate,
    members.lag AS lag,
    members.advantage AS advantage,
    episodes.episode_id AS episode_id,
    turns.turn AS turn,
    turns.policy_version AS sampled_by,
    events.kind AS kind,
    events.event_id AS event_id,
    events.occurred_at AS occurred_at,
    events.kafka_topic AS kafka_topic,
    events.kafka_partition AS kafka_partition,
    events.kafka_offset AS kafka_offset
FROM
(
    SELECT step, batch_hash, group_id, trajectory_id, fate, lag, advantage
    FROM step_members FINAL
    WHERE namespace = {namespace:String} AND run_id = {run:String} AND step = chosen
) AS members
LEFT JOIN
(
    SELECT group_id, position
    FROM batch_groups FINAL
    WHERE namespace = {namespace:String} AND run_id = {run:String} AND batch_hash IN
    (
        SELECT batch_hash FROM step_members
        WHERE namespace = {namespace:String} AND run_id = {run:String} AND step = chosen
    )
) AS positions ON positions.group_id = members.group_id
LEFT JOIN
(
    SELECT arrayJoin(assembled) AS pair, pair.1 AS trajectory_id, pair.2 AS episode_id
) AS episodes ON episodes.trajectory_id = members.trajectory_id
LEFT JOIN
(
    SELECT event_id, kind, episode_id, occurred_at, kafka_topic, kafka_partition, kafka_offset
    FROM events
    WHERE namespace = {namespace:String} AND episode_id IN (SELECT arrayJoin(assembled).2)
    ORDER BY kafka_offset
    LIMIT 1 BY event_id
) AS events ON events.episode_id = episodes.episode_id
LEFT JOIN
(
    SELECT event_id, toNullable(turn) AS turn, policy_version
    FROM trajectory_turns
    WHERE namespace = {namespace:String} AND trajectory_id IN (SELECT arrayJoin(trajectory_ids))
    ORDER BY kafka_offset
    LIMIT 1 BY event_id
) AS turns ON turns.event_id = events.event_id
ORDER BY position, trajectory_id, occurred_at, kafka_offset
