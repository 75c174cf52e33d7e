-- name: step_lineage
-- One step traced to its batch, groups, trajectories, episodes and events, each event with its Kafka coordinates.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
-- param step Int64 = 0 : number of the step; 0 means the newest that has members
WITH
    chosen AS
    (
        SELECT if({step:Int64} > 0, {step:Int64}, max(step)) AS step
        FROM step_members
        WHERE namespace = {namespace:String} AND run_id = {run:String}
    ),
    members AS
    (
        SELECT *
        FROM step_members FINAL
        WHERE namespace = {namespace:String} AND run_id = {run:String} AND step = (SELECT step FROM chosen)
    ),
    member_trajectories AS
    (
        SELECT trajectory_id, episode_id
        FROM trajectories FINAL
        WHERE namespace = {namespace:String} AND trajectory_id IN (SELECT trajectory_id FROM members)
    )
SELECT
    members.step AS step,
    members.batch_hash AS batch,
    positions.position AS position,
    members.group_id AS group_id,
    members.trajectory_id AS trajectory_id,
    members.fate AS fate,
    members.lag AS lag,
    members.advantage AS advantage,
    member_trajectories.episode_id AS episode_id,
    events.kind AS kind,
    events.event_id AS event_id,
    events.occurred_at AS occurred_at,
    events.kafka_topic AS kafka_topic,
    events.kafka_partition AS kafka_partition,
    events.kafka_offset AS kafka_offset
FROM members
LEFT JOIN
(
    SELECT batch_hash, group_id, position
    FROM batch_groups FINAL
    WHERE namespace = {namespace:String} AND run_id = {run:String}
        AND batch_hash IN (SELECT batch_hash FROM members)
) AS positions ON positions.batch_hash = members.batch_hash AND positions.group_id = members.group_id
LEFT JOIN member_trajectories ON member_trajectories.trajectory_id = members.trajectory_id
LEFT JOIN
(
    SELECT *
    FROM events FINAL
    WHERE namespace = {namespace:String} AND episode_id IN (SELECT episode_id FROM member_trajectories)
) AS events ON events.episode_id = member_trajectories.episode_id
ORDER BY position, trajectory_id, occurred_at, kafka_offset
