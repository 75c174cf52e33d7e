-- name: rewards_of_episode
-- What was reported on an episode, and from whom; in_force is empty until assembly has seen a report.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param trajectory String = '' : trajectory id, whose rewards from its root count too
-- param episode String = '' : episode id
WITH
    taken AS
    (
        SELECT
            event_id,
            argMax(toString(name), revision) AS reward,
            argMax(value, revision) AS amount,
            argMax(toString(source), revision) AS speaker,
            argMax(toString(principal), revision) AS author,
            argMax(in_force, revision) AS is_in_force
        FROM trajectory_rewards
        WHERE namespace = {namespace:String} AND trajectory_id = {trajectory:String}
        GROUP BY event_id
    ),
    reported AS
    (
        SELECT event_id, toString(name) AS reward, value, toString(source) AS speaker, retracted, comment, turn_event_id, occurred_at
        FROM rewards FINAL
        WHERE namespace = {namespace:String} AND episode_id = {episode:String} AND episode_id != ''
    )
SELECT
    ids.event_id AS event_id,
    if(taken.event_id != '', taken.reward, reported.reward) AS name,
    if(taken.event_id != '', taken.amount, reported.value) AS value,
    if(taken.event_id != '', taken.speaker, reported.speaker) AS source,
    taken.author AS principal,
    if(taken.event_id != '', toNullable(taken.is_in_force), NULL) AS in_force,
    reported.retracted AS retracted,
    reported.comment AS comment,
    reported.turn_event_id AS turn_event_id,
    if(reported.event_id != '', toNullable(reported.occurred_at), NULL) AS occurred_at
FROM (SELECT event_id FROM taken UNION DISTINCT SELECT event_id FROM reported) AS ids
LEFT JOIN taken ON taken.event_id = ids.event_id
LEFT JOIN reported ON reported.event_id = ids.event_id
ORDER BY occurred_at, event_id
