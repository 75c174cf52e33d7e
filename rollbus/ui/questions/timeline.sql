-- name: timeline
-- What happened when: mean reward and evaluations as lines, versions that were served and commands to the run as marks.
-- Of an evaluation with intervals, what has one is a line: the others are counts, as of the episodes that an estimate used.
-- `metric` is empty but for an evaluation's. Each kind has at most so many points; of more, the last of each stretch of time stays, and of rewards the mean.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
-- param model String = '' : the model that the run trains
-- param points UInt32 = 200 : most points of a kind
WITH
    (
        SELECT (min(first_seen_ms), intDiv(max(first_seen_ms) - min(first_seen_ms), {points:UInt32}) + 1)
        FROM scores
        WHERE namespace = {namespace:String} AND first_seen_ms > 0 AND ({model:String} = '' OR model = {model:String})
    ) AS range
SELECT kind, name, metric, at_ms, reading AS value, low, high, version
FROM
(
    SELECT
        'line' AS kind,
        'reward' AS name,
        '' AS metric,
        toInt64(avg(first_seen_ms)) AS at_ms,
        toNullable(avg(assumeNotNull(value))) AS reading,
        CAST(NULL, 'Nullable(Float64)') AS low,
        CAST(NULL, 'Nullable(Float64)') AS high,
        max(max_policy_version) AS version
    FROM latest_scores(namespace = {namespace:String})
    WHERE value IS NOT NULL AND first_seen_ms > 0 AND ({model:String} = '' OR model = {model:String})
    GROUP BY intDiv(first_seen_ms - range.1, range.2)
    UNION ALL
    SELECT
        'line',
        toString(name),
        metric,
        toUnixTimestamp64Milli(evaluated_at),
        toNullable(metrics[metric]),
        if(mapContains(metrics, concat(metric, '_low')), metrics[concat(metric, '_low')], NULL),
        if(mapContains(metrics, concat(metric, '_high')), metrics[concat(metric, '_high')], NULL),
        policy_version
    FROM
    (
        SELECT * FROM evaluations FINAL
        WHERE namespace = {namespace:String} AND ({model:String} = '' OR model = {model:String})
        ORDER BY evaluated_at DESC
        LIMIT {points:UInt32} BY name
    )
    ARRAY JOIN arrayFilter(
        key -> mapContains(metrics, concat(key, '_low'))
            OR NOT (endsWith(key, '_low') OR endsWith(key, '_high') OR arrayExists(each -> endsWith(each, '_low'), mapKeys(metrics))),
        arrayMap(key -> toString(key), mapKeys(metrics))) AS metric
    UNION ALL
    SELECT 'version', toString(argMax(state, changed_at)), '', toUnixTimestamp64Milli(max(changed_at)), NULL, NULL, NULL,
        toNullable(argMax(version, changed_at))
    FROM
    (
        SELECT *, row_number() OVER (ORDER BY changed_at) AS number, count() OVER () AS all_of_them
        FROM policy_versions FINAL
        WHERE namespace = {namespace:String} AND state IN ('serving', 'quarantined', 'rolled_back')
            AND ({model:String} = '' OR model = {model:String})
    )
    GROUP BY intDiv(number, intDiv(all_of_them, {points:UInt32}) + 1)
    UNION ALL
    SELECT 'command', toString(command), '', toUnixTimestamp64Milli(kafka_timestamp), NULL, NULL, NULL, NULL
    FROM
    (
        SELECT * FROM run_commands FINAL
        WHERE namespace = {namespace:String} AND run_id = {run:String} AND command != 'end_window'
        ORDER BY kafka_timestamp DESC
        LIMIT {points:UInt32}
    )
)
ORDER BY kind, name, metric, at_ms
