-- name: audit
-- What people did: commands to runs, versions that were served or rolled back, decisions they asked for, exclusions, and verdicts by judge and hour, the newest first.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param limit UInt32 = 200 : most rows
SELECT at, what, subject, reason, kafka_topic, kafka_partition, kafka_offset
FROM
(
    SELECT kafka_timestamp AS at, concat('run ', toString(command)) AS what, toString(run_id) AS subject,
        ifNull(comment, '') AS reason, toString(kafka_topic) AS kafka_topic, kafka_partition, kafka_offset
    FROM run_commands FINAL
    WHERE namespace = {namespace:String} AND command != 'removed'
    UNION ALL
    SELECT changed_at, concat('version ', toString(state)), concat(toString(model), '@', toString(version)), ifNull(reason, ''),
        toString(kafka_topic), kafka_partition, kafka_offset
    FROM policy_versions FINAL
    WHERE namespace = {namespace:String} AND ifNull(reason, '') != ''
    UNION ALL
    SELECT decided_at, concat('delivery ', toString(action)), concat(toString(model), if(version IS NULL, '', concat('@', toString(version)))),
        if(detail = '', toString(reason), concat(toString(reason), ': ', detail)), toString(kafka_topic), kafka_partition, kafka_offset
    FROM policy_decisions FINAL
    WHERE namespace = {namespace:String} AND command_id IS NOT NULL
    UNION ALL
    SELECT max(kafka_timestamp), 'exclude', if(count() = 1, any(episode_id), concat(toString(count()), ' episodes')),
        JSONExtractString(detail, 'reason') AS why, any(toString(kafka_topic)), any(kafka_partition), max(kafka_offset)
    FROM events FINAL
    WHERE namespace = {namespace:String} AND kind = 'Excluded' AND writer_id = 'operator'
    GROUP BY why, toStartOfMinute(kafka_timestamp)
    UNION ALL
    SELECT max(revised_at), 'judge', if(uniqExact(trajectory_id) = 1, any(episode_id), concat(toString(uniqExact(trajectory_id)), ' episodes')),
        concat(if(toString(principal) = '', 'operator', toString(principal)), ': ', toString(name)), any(toString(kafka_topic)), any(kafka_partition), max(kafka_offset)
    FROM trajectory_rewards FINAL
    WHERE namespace = {namespace:String} AND source IN ('operator', 'judge')
    GROUP BY principal, name, toStartOfHour(revised_at)
)
ORDER BY at DESC, what, subject
LIMIT {limit:UInt32}
