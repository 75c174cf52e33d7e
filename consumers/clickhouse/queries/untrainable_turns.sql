-- name: untrainable_turns
-- Turns that cannot be trained, by model and reason: their share of the model's turns, and the producers they came from.
-- param namespace String = 'rollbus.' : prefix of the log's topics
WITH
    refused AS
    (
        SELECT episode_id, splitByChar('@', toString(model))[1] AS model, untrainable_reason AS reason, occurred_at
        FROM turns FINAL
        WHERE namespace = {namespace:String} AND NOT trainable AND episode_id IN
        (
            SELECT episode_id FROM turns WHERE namespace = {namespace:String} AND NOT trainable
        )
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
    refused.model AS model,
    refused.reason AS reason,
    count() AS turns,
    turns / any(totals.turns) AS share,
    groupUniqArray(20)(toString(episodes.producer)) AS producers,
    max(refused.occurred_at) AS newest
FROM refused
INNER JOIN totals ON totals.model = refused.model
LEFT JOIN
(
    SELECT episode_id, producer
    FROM episodes FINAL
    WHERE namespace = {namespace:String} AND episode_id IN (SELECT episode_id FROM refused)
) AS episodes ON episodes.episode_id = refused.episode_id
GROUP BY model, reason
ORDER BY model, turns DESC, reason
