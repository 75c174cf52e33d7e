-- name: untrainable_turns
-- Turns that cannot be trained, by model and reason: their share of the model's turns, the servers that were asked, and the
-- producers they came from.
-- param namespace String = 'rollbus.' : prefix of the log's topics
WITH
    -- Of an event delivered again the first row holds, as everywhere.
    refused AS
    (
        SELECT
            event_id,
            any(turns.episode_id) AS episode,
            splitByChar('@', toString(argMin(turns.model, kafka_offset)))[1] AS name,
            argMin(tuple(untrainable_reason), kafka_offset).1 AS reason,
            argMin(toString(turns.server), kafka_offset) AS server,
            argMin(turns.occurred_at, kafka_offset) AS at
        FROM turns
        WHERE namespace = {namespace:String} AND episode_id IN
        (
            SELECT episode_id FROM turns WHERE namespace = {namespace:String} AND NOT trainable
        )
        GROUP BY event_id
        HAVING NOT argMin(trainable, kafka_offset)
    ),
    -- By the whole name first: taking it apart for every turn would take longer than counting them.
    totals AS
    (
        SELECT splitByChar('@', toString(name))[1] AS model, sum(named) AS turns
        FROM
        (
            SELECT model AS name, uniqExact(cityHash64(event_id)) AS named
            FROM turns
            WHERE namespace = {namespace:String}
            GROUP BY name
        )
        GROUP BY model
    )
SELECT
    refused.name AS model,
    refused.reason AS reason,
    count() AS turns,
    turns / any(totals.turns) AS share,
    groupUniqArrayIf(20)(refused.server, refused.server != '') AS servers,
    groupUniqArray(20)(toString(episodes.producer)) AS producers,
    max(refused.at) AS newest
FROM refused
INNER JOIN totals ON totals.model = refused.name
LEFT JOIN
(
    SELECT episode_id, producer
    FROM episodes FINAL
    WHERE namespace = {namespace:String} AND episode_id IN (SELECT episode FROM refused)
) AS episodes ON episodes.episode_id = refused.episode
GROUP BY model, reason
ORDER BY model, turns DESC, reason
