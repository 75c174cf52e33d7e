-- name: tokens_per_minute
-- Turns and tokens sampled in each minute of event time, by model; minutes without any are filled in.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param model String = '' : only this model, as answers name it; empty means all
-- param minutes UInt32 = 1440 : how many minutes back from the newest turn
WITH recent AS
(
    SELECT toStartOfMinute(occurred_at) AS minute, *
    FROM (SELECT * FROM turns FINAL WHERE namespace = {namespace:String})
    WHERE {model:String} = '' OR model = {model:String} OR startsWith(model, concat({model:String}, '@'))
)
SELECT
    recent.minute AS minute,
    count() AS turns,
    sum(length(tokens.prompt_token_ids)) AS prompt_tokens,
    sum(length(tokens.completion_token_ids)) AS completion_tokens,
    countIf(recent.trainable) AS trainable_turns
FROM recent
LEFT JOIN
(
    SELECT event_id, prompt_token_ids, completion_token_ids
    FROM turn_tokens FINAL
    WHERE namespace = {namespace:String}
) AS tokens ON tokens.event_id = recent.event_id
WHERE recent.minute > (SELECT max(minute) FROM recent) - toIntervalMinute({minutes:UInt32})
GROUP BY minute
ORDER BY minute WITH FILL STEP toIntervalMinute(1)
