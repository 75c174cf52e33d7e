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
-- param after String = '' : only those that follow this trajectory, as the next page does; empty means from the newest on
-- param limit UInt32 = 100 : most rows
-- param skip UInt32 = 0 : rows to leave out before
WITH
    parseDateTime64BestEffortOrNull(if({since:String} = '', '1970-01-01', {since:String}), 3, 'UTC') AS earliest,
    parseDateTime64BestEffortOrNull(if({until:String} = '', '2200-01-01', {until:String}), 3, 'UTC') AS latest,
    (
        SELECT throwIf(isNull(earliest) OR isNull(latest), 'since and until are times in UTC such as 2026-01-31 12:00')
    ) AS are_no_times,
    -- as JSON has it, which the messages are stored in: few texts are then read as JSON
    replaceAll(replaceAll(replaceAll(replaceAll(replaceAll({text:String}, '\\', '\\\\'), '"', '\\"'), '\t', '\\t'), '\n', '\\n'),
        '\r', '\\r') AS quoted,
    -- for the index of words, which knows capitals of ASCII only: any other letter may be any
    concat('%', replaceRegexpAll(replaceRegexpAll(lower(quoted), '([%_\\\\])', '\\\\\\1'), '[^\\x00-\\x7F]+', '%'), '%') AS alike,
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
    (
        SELECT max(started_at) FROM trajectories
        WHERE namespace = {namespace:String} AND {after:String} != '' AND trajectory_id = {after:String}
    ) AS after_at,
    -- The keys of the page, and how many match. All else is read for these alone; an array, as ClickHouse works a scalar
    -- out once and a table at each place that names it.
    (
        SELECT groupArray((trajectory_key, started_at, matches))
        FROM
        (
            SELECT trajectory_key, started_at, matches
            FROM
            (
                SELECT trajectory_key, started_at, count() OVER () AS matches
                FROM trajectories FINAL
                WHERE namespace = {namespace:String}
                    AND NOT are_no_times
                    AND started_at >= assumeNotNull(earliest) AND started_at < assumeNotNull(latest)
                    -- if task
                    AND ({task:String} = '' OR task = {task:String})
                    -- end
                    -- if id
                    AND ({id:String} = '' OR has([trajectory_id, episode_id, ifNull(example_id, ''), ifNull(group_id, '')], {id:String}))
                    -- end
                    -- if label
                    AND ({label:String} = '' OR (mapContains(labels, {label:String})
                        AND ({label_value:String} = '' OR labels[{label:String}] = {label_value:String})))
                    -- end
                    -- if version
                    AND ({version:Int64} = -1 OR max_policy_version = {version:Int64})
                    -- end
                    -- if data_set
                    AND ({data_set:String} = '' OR trajectory_key IN
                    (
                        SELECT cityHash64(trajectory_id) FROM data_set_members
                        WHERE namespace = {namespace:String} AND data_set = {data_set:String}
                        GROUP BY trajectory_id
                        HAVING argMax(is_member, (changed_at, kafka_offset))
                    ))
                    -- end
                    -- if tool
                    AND ({tool:String} = '' OR episode_key IN
                    (
                        SELECT cityHash64(episode_id) FROM tool_calls
                        WHERE namespace = {namespace:String} AND name = {tool:String}
                    ))
                    -- end
                    -- if error
                    AND ({error:String} = '' OR episode_key IN
                    (
                        SELECT cityHash64(episode_id) FROM episode_ends
                        WHERE namespace = {namespace:String} AND (error IS NOT NULL OR stop_reason = 'error')
                            AND ({error:String} = '*' OR positionCaseInsensitiveUTF8(ifNull(error, ''), {error:String}) > 0)
                        UNION ALL
                        SELECT cityHash64(episode_id) FROM tool_calls
                        WHERE namespace = {namespace:String} AND error IS NOT NULL
                            AND ({error:String} = '*' OR positionCaseInsensitiveUTF8(ifNull(error, ''), {error:String}) > 0)
                    ))
                    -- end
                    -- if judged
                    AND ({judged:String} = '' OR ({judged:String} = 'yes')
                        = (trajectory_key IN (SELECT cityHash64(trajectory_id) FROM verdicts)))
                    -- end
                    -- if judge
                    AND ({judge:String} = '' OR trajectory_key IN
                    (
                        SELECT cityHash64(trajectory_id) FROM verdicts WHERE has(judges, {judge:String})
                    ))
                    -- end
                    -- if fate, stage, reason
                    AND (({fate:String} = '' AND {stage:String} = '' AND {reason:String} = '') OR trajectory_key IN
                    (
                        SELECT trajectory_key FROM trajectory_fates(namespace = {namespace:String}, run = {run:String})
                        WHERE ({fate:String} = '' OR fate = {fate:String})
                            AND ({stage:String} = '' OR stage = {stage:String})
                            AND ({reason:String} = '' OR reason = {reason:String})
                    ))
                    -- end
                    -- if reward_from, reward_to
                    AND (({reward_from:Float64} <= -1e300 AND {reward_to:Float64} >= 1e300) OR trajectory_key IN
                    (
                        SELECT trajectory_key FROM latest_scores(namespace = {namespace:String})
                        WHERE value >= {reward_from:Float64} AND value <= {reward_to:Float64}
                    ))
                    -- end
                    -- if text
                    AND ({text:String} = '' OR episode_key IN
                    (
                        SELECT cityHash64(episode_id) FROM turns
                        WHERE namespace = {namespace:String} AND lower(concat(added_messages, completion)) LIKE alike
                            AND (positionCaseInsensitiveUTF8(completion, quoted) > 0
                                OR positionCaseInsensitiveUTF8(added_messages, quoted) > 0)
                            AND arrayExists(field -> field.1 NOT IN ('role', 'tool_call_id')
                                AND positionCaseInsensitiveUTF8(field.2, {text:String}) > 0, arrayFlatten(arrayMap(
                                    message -> JSONExtractKeysAndValues(message, 'String'),
                                    arrayPushBack(JSONExtractArrayRaw(added_messages), completion))))
                    ))
                    -- end
            )
            WHERE {after:String} = '' OR started_at < after_at
                OR (started_at = after_at AND trajectory_key > cityHash64({after:String}))
            ORDER BY started_at DESC, trajectory_key
            LIMIT {limit:UInt32} OFFSET {skip:UInt32}
        )
    ) AS page,
    page_keys AS (SELECT arrayJoin(page).1 AS trajectory_key),
    (SELECT is_removed FROM removed_run(namespace = {namespace:String}, run = {run:String})) AS is_removed
SELECT
    found.trajectory_id AS trajectory_id,
    found.episode_id AS episode_id,
    found.task AS task,
    found.example_id AS example_id,
    found.labels AS labels,
    found.max_policy_version AS policy_version,
    score.value AS reward,
    multiIf(fates.fate != '', fates.fate, is_removed, 'dropped', 'pending') AS fate,
    fates.step AS step,
    fates.stage AS stage,
    if(fates.fate = '' AND is_removed, 'run_removed', fates.reason) AS reason,
    found.turns AS turns,
    found.sampled_tokens AS sampled_tokens,
    found.started_at AS started_at,
    arraySort(said.judges) AS judges,
    page[1].3 AS matches
FROM
(
    SELECT trajectory_key, trajectory_id, episode_id, task, example_id, labels, max_policy_version, turns, sampled_tokens, started_at
    FROM trajectories FINAL
    WHERE namespace = {namespace:String} AND started_at IN (SELECT arrayJoin(page).2)
        AND trajectory_key IN (SELECT trajectory_key FROM page_keys)
) AS found
LEFT JOIN
(
    SELECT trajectory_id, judges FROM verdicts WHERE trajectory_id IN
    (
        SELECT trajectory_id FROM trajectories
        WHERE namespace = {namespace:String} AND started_at IN (SELECT arrayJoin(page).2)
            AND trajectory_key IN (SELECT trajectory_key FROM page_keys)
    )
) AS said ON said.trajectory_id = found.trajectory_id
LEFT JOIN
(
    SELECT trajectory_key, value FROM latest_scores(namespace = {namespace:String})
    WHERE trajectory_key IN (SELECT trajectory_key FROM page_keys)
) AS score ON score.trajectory_key = found.trajectory_key
LEFT JOIN
(
    SELECT trajectory_key, fate, step, stage, reason
    FROM decided_fates(namespace = {namespace:String}, run = {run:String})
    WHERE trajectory_key IN (SELECT trajectory_key FROM page_keys)
) AS fates ON fates.trajectory_key = found.trajectory_key
ORDER BY found.started_at DESC, found.trajectory_key
