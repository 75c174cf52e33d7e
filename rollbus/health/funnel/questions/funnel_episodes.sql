-- name: funnel_episodes
-- How far the episodes that began since a time came in a run: counts by what they reached, and by what dropped them.
-- detail: why a turn cannot be trained, or the three most frequent reasons for which a filter leaves episodes out.
-- reached: 0 began, 1 trainable, 2 with a reward, 3 grouped, 4 in a group with a signal, 5 in a step.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
-- param since_ms Int64 = 0 : milliseconds since 1970, by the broker's clock
WITH
    fromUnixTimestamp64Milli({since_ms:Int64}, 'UTC') AS since,
    began AS
    (
        SELECT episode_key, min(kafka_timestamp) AS at
        FROM episodes
        WHERE namespace = {namespace:String} AND kafka_timestamp >= since
        GROUP BY episode_key
    ),
    assembled AS
    (
        SELECT
            episode_key,
            true AS is_there,
            any(trajectory_key) AS trajectory_key,
            any(trainable) AS is_trainable,
            any(ifNull(toString(untrainable_reason), '')) AS untrainable
        FROM trajectories
        WHERE namespace = {namespace:String} AND kafka_timestamp >= since
        GROUP BY episode_key
    ),
    facts AS
    (
        SELECT
            trajectory_key,
            argMaxIf(rewarded, revision, revision >= 0) OR is_grouped AS is_rewarded, -- as the newest score says
            max(grouped) AS is_grouped,
            max(signal) AS has_signal,
            max(trained) AS is_trained,
            argMinIf(drop_reason, (at, drop_reason), drop_reason != '') AS reason
        FROM
        (
            SELECT trajectory_key, revision, value IS NOT NULL AS rewarded, false AS grouped, false AS signal, false AS trained,
                '' AS drop_reason, kafka_timestamp AS at
            FROM scores
            WHERE namespace = {namespace:String} AND kafka_timestamp >= since
            UNION ALL
            SELECT members.trajectory_key, -1, true, true, closed.has_signal, false, '', members.kafka_timestamp
            FROM
            (
                SELECT trajectory_key, kafka_timestamp, cityHash64(group_id) AS group_key
                FROM group_members
                WHERE namespace = {namespace:String} AND run_id = {run:String} AND kafka_timestamp >= since
            ) AS members
            INNER JOIN
            (
                SELECT cityHash64(group_id) AS group_key, max(has_signal) AS has_signal
                FROM groups
                WHERE namespace = {namespace:String} AND run_id = {run:String} AND kafka_timestamp >= since
                GROUP BY group_key
            ) AS closed ON closed.group_key = members.group_key
            UNION ALL
            SELECT trajectory_key, -1, true, true, true, true, '', kafka_timestamp
            FROM step_members
            WHERE namespace = {namespace:String} AND run_id = {run:String} AND fate = 'trained'
                AND kafka_timestamp >= since
            UNION ALL
            SELECT trajectory_key, -1, false, false, false, false, ifNull(toString(reason), ''), kafka_timestamp
            FROM step_members
            WHERE namespace = {namespace:String} AND run_id = {run:String} AND fate = 'dropped'
                AND kafka_timestamp >= since
            UNION ALL
            SELECT trajectory_key, -1, false, false, false, false, toString(reason), kafka_timestamp
            FROM drop_trajectories
            WHERE namespace = {namespace:String} AND run_id IN ('', {run:String}) AND kafka_timestamp >= since
        )
        GROUP BY trajectory_key
    ),
    lost_whole AS
    (
        SELECT cityHash64(unit_id) AS episode_key, any(toString(reason)) AS reason
        FROM drops
        WHERE namespace = {namespace:String} AND unit = 'episode' AND kafka_timestamp >= since
        GROUP BY episode_key
    ),
    outside AS
    (
        SELECT cityHash64(unit_id) AS trajectory_key, any(detail) AS what
        FROM drops
        WHERE namespace = {namespace:String} AND run_id = {run:String} AND unit = 'trajectory'
            AND reason = 'not_targeted' AND detail != 'not_targeted' AND kafka_timestamp >= since
        GROUP BY trajectory_key
    ),
    waiting AS
    (
        SELECT DISTINCT episode_key, true AS has_paused
        FROM events
        WHERE namespace = {namespace:String} AND kind = 'WriterClosed' AND kafka_timestamp >= since
            AND JSONExtractBool(detail, 'paused')
    )
SELECT
    multiIf(facts.is_trained, 5, facts.has_signal, 4, facts.is_grouped, 3,
        facts.is_rewarded AND assembled.is_trainable, 2, assembled.is_trainable, 1, 0) AS reached,
    assembled.is_there AS is_assembled,
    multiIf(facts.is_trained, '', facts.reason != '', facts.reason, lost_whole.reason) AS dropped_by,
    multiIf(
        dropped_by = 'untrainable', if(assembled.untrainable = '', 'no_policy_version', assembled.untrainable),
        dropped_by = 'not_targeted'
            AND outside.what IN (SELECT what FROM outside GROUP BY what ORDER BY count() DESC, what LIMIT 3), outside.what,
        '') AS detail,
    count() AS episodes,
    countIf(waiting.has_paused) AS paused,
    toUnixTimestamp64Milli(min(began.at)) AS oldest_ms
FROM began
LEFT JOIN assembled ON assembled.episode_key = began.episode_key
LEFT JOIN facts ON facts.trajectory_key = assembled.trajectory_key
LEFT JOIN lost_whole ON lost_whole.episode_key = began.episode_key
LEFT JOIN outside ON outside.trajectory_key = assembled.trajectory_key
LEFT JOIN waiting ON waiting.episode_key = began.episode_key
GROUP BY reached, is_assembled, dropped_by, detail
ORDER BY reached, is_assembled, dropped_by, detail
