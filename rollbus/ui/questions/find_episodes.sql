-- name: find_episodes
-- Episodes of a run by what is known of them, the newest first; how many match is in every row.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
-- param task String = '' : only this task; empty means all
-- param id String = '' : only this episode, trajectory, example or group of a producer; empty means all
-- param label String = '' : only with this label; empty means all
-- param label_value String = '' : only with this value of the label; empty means any
-- param reward_from Float64 = -1e300 : least reward; an episode without one does not match a bound
-- param reward_to Float64 = 1e300 : greatest reward
-- param version Int64 = -1 : newest version that sampled it; −1 means any
-- param fate String = '' : trained, dropped or pending; empty means all
-- param stage String = '' : dropped by this stage; empty means any
-- param reason String = '' : dropped with this reason; empty means any
-- param text String = '' : said in the conversation, in any case of letters; empty means anything
-- param tool String = '' : called this tool; empty means any
-- param error String = '' : its end or one of its tools failed with these words, in any case of letters; `*` is any error
-- param judged String = '' : `yes` with a verdict of a person, `no` without; empty means all
-- param judge String = '' : with a verdict of this judge; empty means all
-- param since String = '' : started at this time (UTC) or later; empty means any time
-- param until String = '' : started before this time (UTC); empty means any time
-- param data_set String = '' : member of this data set; empty means all
-- param limit UInt32 = 100 : most rows
-- param skip UInt32 = 0 : rows to leave out before
WITH
    parseDateTime64BestEffortOrNull(if({since:String} = '', '1970-01-01', {since:String}), 3, 'UTC') AS earliest,
    parseDateTime64BestEffortOrNull(if({until:String} = '', '2200-01-01', {until:String}), 3, 'UTC') AS latest,
    (
        SELECT throwIf(isNull(earliest) OR isNull(latest), 'since and until are times in UTC such as 2026-01-31 12:00')
    ) AS are_no_times,
    -- as JSON has it, which the messages are stored in: few texts are then read as JSON
    replaceAll(replaceAll({text:String}, '\\', '\\\\'), '"', '\\"') AS quoted,
    verdicts AS
    (
        SELECT trajectory_id, groupUniqArrayIf(judge, is_valid) AS judges
        FROM
        (
            SELECT trajectory_id, argMax(if(principal = '', 'operator', toString(principal)), revision) AS judge,
                argMax(in_force, revision) AS is_valid
            FROM trajectory_rewards
            WHERE namespace = {namespace:String} AND source IN ('operator', 'judge')
            GROUP BY trajectory_id, event_id
        )
        GROUP BY trajectory_id
        HAVING notEmpty(judges)
    ),
    -- without a filter on what came later, only the rows of the page are joined with it
    {fate:String} = '' AND {stage:String} = '' AND {reason:String} = ''
        AND {reward_from:Float64} <= -1e300 AND {reward_to:Float64} >= 1e300 AS is_page_enough,
    candidates AS
    (
        SELECT trajectory_key, trajectory_id, episode_id, task, example_id, labels, max_policy_version, turns, sampled_tokens, started_at
        FROM trajectories FINAL
        WHERE namespace = {namespace:String}
            AND ({task:String} = '' OR task = {task:String})
            AND ({id:String} = '' OR {id:String} IN (episode_id, trajectory_id, ifNull(example_id, ''), ifNull(group_id, '')))
            AND ({label:String} = '' OR (mapContains(labels, {label:String})
                AND ({label_value:String} = '' OR labels[{label:String}] = {label_value:String})))
            AND ({version:Int64} = -1 OR max_policy_version = {version:Int64})
            AND ({data_set:String} = '' OR trajectory_id IN
            (
                SELECT trajectory_id FROM data_set_members
                WHERE namespace = {namespace:String} AND data_set = {data_set:String}
                GROUP BY trajectory_id
                HAVING argMax(is_member, (changed_at, kafka_offset))
            ))
            AND ({tool:String} = '' OR episode_id IN
            (
                SELECT episode_id FROM tool_calls WHERE namespace = {namespace:String} AND name = {tool:String}
            ))
            AND ({error:String} = '' OR episode_id IN
            (
                SELECT episode_id FROM episode_ends
                WHERE namespace = {namespace:String} AND (error IS NOT NULL OR stop_reason = 'error')
                    AND ({error:String} = '*' OR positionCaseInsensitiveUTF8(ifNull(error, ''), {error:String}) > 0)
                UNION ALL
                SELECT episode_id FROM tool_calls
                WHERE namespace = {namespace:String} AND error IS NOT NULL
                    AND ({error:String} = '*' OR positionCaseInsensitiveUTF8(ifNull(error, ''), {error:String}) > 0)
            ))
            AND ({judged:String} = '' OR ({judged:String} = 'yes') = (trajectory_id IN (SELECT trajectory_id FROM verdicts)))
            AND ({judge:String} = '' OR trajectory_id IN
            (
                SELECT trajectory_id FROM verdicts WHERE has(judges, {judge:String})
            ))
            AND NOT are_no_times
            AND started_at >= earliest AND started_at < latest
            AND ({text:String} = '' OR episode_id IN
            (
                SELECT episode_id FROM turns
                WHERE namespace = {namespace:String}
                    AND (positionCaseInsensitiveUTF8(completion, quoted) > 0
                        OR positionCaseInsensitiveUTF8(added_messages, quoted) > 0)
                    AND arrayExists(field -> field.1 NOT IN ('role', 'tool_call_id')
                        AND positionCaseInsensitiveUTF8(field.2, {text:String}) > 0, arrayFlatten(arrayMap(
                            message -> JSONExtractKeysAndValues(message, 'String'),
                            arrayPushBack(JSONExtractArrayRaw(added_messages), completion))))
            ))
    ),
    found AS
    (
        SELECT * FROM candidates
        ORDER BY started_at DESC, trajectory_id
        LIMIT if({fate:String} = '' AND {stage:String} = '' AND {reason:String} = ''
            AND {reward_from:Float64} <= -1e300 AND {reward_to:Float64} >= 1e300, {limit:UInt32} + {skip:UInt32}, 4000000000)
    )
SELECT
    found.trajectory_id AS trajectory_id,
    found.episode_id AS episode_id,
    found.task AS task,
    found.example_id AS example_id,
    found.labels AS labels,
    found.max_policy_version AS policy_version,
    score.value AS reward,
    fates.fate AS fate,
    fates.step AS step,
    fates.stage AS stage,
    fates.reason AS reason,
    found.turns AS turns,
    found.sampled_tokens AS sampled_tokens,
    found.started_at AS started_at,
    arraySort(verdicts.judges) AS judges,
    if(is_page_enough, (SELECT count() FROM candidates), count() OVER ()) AS matches
FROM found
LEFT JOIN verdicts ON verdicts.trajectory_id = found.trajectory_id
LEFT JOIN
(
    SELECT trajectory_key, value FROM latest_scores(namespace = {namespace:String})
    WHERE trajectory_key IN (SELECT trajectory_key FROM found)
) AS score ON score.trajectory_key = found.trajectory_key
LEFT JOIN
(
    SELECT trajectory_key, fate, step, stage, reason
    FROM trajectory_fates(namespace = {namespace:String}, run = {run:String})
    WHERE trajectory_key IN (SELECT trajectory_key FROM found)
) AS fates ON fates.trajectory_key = found.trajectory_key
WHERE ({fate:String} = '' OR fates.fate = {fate:String})
    AND ({stage:String} = '' OR fates.stage = {stage:String})
    AND ({reason:String} = '' OR fates.reason = {reason:String})
    AND (({reward_from:Float64} <= -1e300 AND {reward_to:Float64} >= 1e300)
        OR (score.value >= {reward_from:Float64} AND score.value <= {reward_to:Float64}))
ORDER BY found.started_at DESC, found.trajectory_id
LIMIT {limit:UInt32} OFFSET {skip:UInt32}
