-- name: tokens_per_minute
-- Turns and tokens sampled in each minute of event time, by model; minutes without any are filled in.
-- A turn without token ids counts by the usage that the server reported.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param model String = '' : only this model, as answers name it; empty means all
-- param minutes UInt32 = 1440 : how many minutes back from the newest turn
WITH
    (
        SELECT toStartOfMinute(max(occurred_at))
            - toIntervalMinute(least({minutes:UInt32}, intDiv(toUnixTimestamp(max(occurred_at)), 60)))
        FROM turns
        WHERE namespace = {namespace:String}
            AND ({model:String} = '' OR model = {model:String} OR startsWith(model, concat({model:String}, '@')))
    ) AS since,
    recent AS
    (
        SELECT cityHash64(event_id) AS event, toStartOfMinute(occurred_at) AS minute, trainable,
            ifNull(prompt_tokens, 0) AS prompt, ifNull(completion_tokens, 0) AS completion
        FROM turns
        WHERE namespace = {namespace:String} AND toStartOfMinute(occurred_at) > since
            AND ({model:String} = '' OR model = {model:String} OR startsWith(model, concat({model:String}, '@')))
        ORDER BY kafka_offset
        LIMIT 1 BY event
    )
SELECT
    recent.minute AS minute,
    count() AS turns,
    sum(if(tokens.prompt > 0, tokens.prompt, recent.prompt)) AS prompt_tokens,
    sum(if(tokens.completion > 0, tokens.completion, recent.completion)) AS completion_tokens,
    countIf(recent.trainable) AS trainable_turns
FROM recent
LEFT ANY JOIN
(
    SELECT cityHash64(event_id) AS event,
        toInt64(length(prompt_token_ids)) AS prompt, toInt64(length(completion_token_ids)) AS completion
    FROM turn_tokens
    WHERE namespace = {namespace:String} AND cityHash64(event_id) IN (SELECT event FROM recent)
) AS tokens ON tokens.event = recent.event
GROUP BY minute
ORDER BY minute WITH FILL STEP toIntervalMinute(1)
