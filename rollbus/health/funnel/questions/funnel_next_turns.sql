-- name: funnel_next_turns
-- What users did next, as it counts in the newest score of each trajectory: turns by signal and how many of them are
-- unclear; of turns that two signals speak of, how many agree; and so with verdicts on the whole episode. Two agree if
-- both are above 0.5, or both are not.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param since_ms Int64 = 0 : milliseconds since 1970, by the broker's clock
WITH fromUnixTimestamp64Milli({since_ms:Int64}, 'UTC') AS since,
newest AS
(
    SELECT trajectory_id, max(revision) AS revision
    FROM scores
    WHERE namespace = {namespace:String} AND kafka_timestamp >= since
    GROUP BY trajectory_id
),
spoken AS
(
    SELECT
        trajectory_id, turn_event_id, component, toString(any(turn_rewards.signal)) AS signal,
        avgWeighted(ifNull(turn_rewards.value, 0), turn_rewards.confidence * isNotNull(turn_rewards.value)) AS worth,
        countIf(turn_rewards.value IS NOT NULL) > 0 AS is_clear
    FROM turn_rewards FINAL
    INNER JOIN newest USING (trajectory_id, revision)
    WHERE namespace = {namespace:String} AND kafka_timestamp >= since AND turn_rewards.signal != ''
    GROUP BY trajectory_id, turn_event_id, component
),
verdicts AS
(
    SELECT trajectory_id, avg(worth) AS worth
    FROM
    (
        SELECT trajectory_id, event_id, argMax(value, revision) AS worth, argMax(in_force, revision) AS counts
        FROM trajectory_rewards FINAL
        WHERE namespace = {namespace:String} AND kafka_timestamp >= since AND signal = '' AND turn_event_id IS NULL
        GROUP BY trajectory_id, event_id
    )
    WHERE counts
    GROUP BY trajectory_id
)
SELECT 'signal' AS kind, signal AS name, count() AS turns, countIf(NOT is_clear) AS other
FROM spoken
GROUP BY signal
UNION ALL
SELECT 'pair' AS kind, concat(one.component, ' and ', two.component) AS name, count() AS turns,
    countIf((one.worth > 0.5) = (two.worth > 0.5)) AS other
FROM spoken AS one
INNER JOIN spoken AS two ON one.trajectory_id = two.trajectory_id AND one.turn_event_id = two.turn_event_id
WHERE one.component < two.component AND one.is_clear AND two.is_clear
GROUP BY name
UNION ALL
SELECT 'verdict' AS kind, heard.component AS name, count() AS turns,
    countIf((heard.worth > 0.5) = (verdicts.worth > 0.5)) AS other
FROM
(
    SELECT trajectory_id, component, avg(worth) AS worth FROM spoken WHERE is_clear GROUP BY trajectory_id, component
) AS heard
INNER JOIN verdicts ON verdicts.trajectory_id = heard.trajectory_id
GROUP BY name
ORDER BY kind DESC, turns DESC, name
