-- name: conversation
-- The events of an episode, or of a trajectory's, in the order of assembly: each writer's in its sequence, merged by event time;
-- turns with messages, tokens and log-probs, tool calls, rewards, the end.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param trajectory String = '' : trajectory id
-- param episode String = '' : episode id, also of one that became no trajectory
WITH
    -- an array, as ClickHouse works a scalar out once and a table at each place that names it
    (
        SELECT arrayPushBack(groupUniqArray(episode_id), {episode:String}) FROM trajectories
        WHERE namespace = {namespace:String} AND trajectory_id = {trajectory:String}
    ) AS episodes
SELECT
    each.event_id AS event_id,
    each.kind AS kind,
    each.occurred_at AS occurred_at,
    each.kafka_topic AS kafka_topic,
    each.kafka_partition AS kafka_partition,
    each.kafka_offset AS kafka_offset,
    turn.model AS model,
    turn.policy_version AS policy_version,
    turn.added_messages AS added_messages,
    turn.completion AS completion,
    turn.untrainable_reason AS untrainable_reason,
    token.completion_token_ids AS token_ids,
    token.logprobs AS logprobs,
    tool.name AS tool,
    tool.arguments AS arguments,
    tool.result AS result,
    tool.error AS tool_error,
    reward.name AS reward,
    reward.value AS value,
    reward.comment AS comment,
    ending.stop_reason AS stop_reason,
    ending.error AS error
FROM
(
    SELECT *, max(occurred_at) OVER (PARTITION BY episode_id, writer_id, if(sequence < 0, event_id, '') ORDER BY sequence) AS merged_at
    FROM events FINAL
    WHERE namespace = {namespace:String} AND episode_id IN (SELECT arrayJoin(episodes))
) AS each
LEFT JOIN
(
    SELECT * FROM turns FINAL WHERE namespace = {namespace:String} AND episode_id IN (SELECT arrayJoin(episodes))
) AS turn ON turn.event_id = each.event_id
LEFT JOIN
(
    SELECT * FROM turn_tokens FINAL
    WHERE namespace = {namespace:String} AND episode_id IN (SELECT arrayJoin(episodes))
) AS token ON token.event_id = each.event_id
LEFT JOIN
(
    SELECT * FROM tool_calls FINAL
    WHERE namespace = {namespace:String} AND episode_id IN (SELECT arrayJoin(episodes))
) AS tool ON tool.event_id = each.event_id
LEFT JOIN
(
    SELECT * FROM rewards FINAL
    WHERE namespace = {namespace:String} AND episode_id IN (SELECT arrayJoin(episodes))
) AS reward ON reward.event_id = each.event_id
LEFT JOIN
(
    SELECT * FROM episode_ends FINAL
    WHERE namespace = {namespace:String} AND episode_id IN (SELECT arrayJoin(episodes))
) AS ending ON ending.event_id = each.event_id
ORDER BY each.merged_at, each.writer_id, each.sequence, each.kafka_offset
