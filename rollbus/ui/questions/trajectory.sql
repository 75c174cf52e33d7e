-- name: trajectory
-- One trajectory: its task, its end, its newest score, and the label of whoever it was for.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id, for its group and advantage
-- param trajectory String = '' : trajectory id
SELECT
    found.trajectory_id AS trajectory_id,
    found.episode_id AS episode_id,
    found.task AS task,
    found.example_id AS example_id,
    found.agent AS agent,
    found.labels AS labels,
    found.started_at AS started_at,
    found.ended_at AS ended_at,
    found.closed_by AS closed_by,
    found.stop_reason AS stop_reason,
    found.turns AS turns,
    found.tokens AS tokens,
    found.sampled_tokens AS sampled_tokens,
    found.trainable AS trainable,
    found.untrainable_reason AS untrainable_reason,
    score.value AS reward,
    score.components AS components,
    score.outcome AS scoring,
    member.group_id AS group_id,
    member.advantage AS advantage,
    found.kafka_topic AS kafka_topic,
    found.kafka_partition AS kafka_partition,
    found.kafka_offset AS kafka_offset
FROM
(
    SELECT * FROM trajectories FINAL
    WHERE namespace = {namespace:String} AND trajectory_id = {trajectory:String}
) AS found
LEFT JOIN
(
    SELECT trajectory_id, value, components, outcome FROM scores FINAL
    WHERE namespace = {namespace:String} AND trajectory_id = {trajectory:String}
    ORDER BY revision DESC
    LIMIT 1
) AS score ON score.trajectory_id = found.trajectory_id
LEFT JOIN
(
    SELECT trajectory_id, toString(group_id) AS group_id, toNullable(advantage) AS advantage FROM group_members FINAL
    WHERE namespace = {namespace:String} AND run_id = {run:String} AND trajectory_id = {trajectory:String}
    ORDER BY closed_at DESC
    LIMIT 1
) AS member ON member.trajectory_id = found.trajectory_id
