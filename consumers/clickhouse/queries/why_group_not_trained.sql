-- name: why_group_not_trained
-- Every decision about one group, in order: how it closed, its window, its batch, its step, and any drop.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
-- param group String = '' : group id
-- id group = group
SELECT stage, what, detail, trajectories, at, kafka_topic, kafka_partition, kafka_offset
FROM
(
    SELECT 1 AS rank, 'grouping' AS stage, concat('closed: ', closed_by) AS what,
        concat('rewards ', toString(round(reward_min, 4)), ' to ', toString(round(reward_max, 4)), ', mean ',
            toString(round(reward_mean, 4)), ', deviation ', toString(round(reward_std, 4)),
            if(has_signal, '', ': no signal')) AS detail,
        size AS trajectories, closed_at AS at, kafka_topic, kafka_partition, kafka_offset
    FROM groups FINAL
    WHERE namespace = {namespace:String} AND run_id = {run:String} AND group_id = {group:String}
    UNION ALL
    SELECT 2, 'curriculum',
        multiIf(has(admitted_group_ids, {group:String}), concat('admitted by window ', toString(window)),
            has(rejected_group_ids, {group:String}), concat('rejected by window ', toString(window)),
            concat('seen by window ', toString(window))),
        concat(mode, ', percentile ', toString(percentile), ', admitted ', toString(length(admitted_group_ids)),
            ' of ', toString(length(seen_group_ids))),
        0, closed_at, kafka_topic, kafka_partition, kafka_offset
    FROM curriculum_states FINAL
    WHERE namespace = {namespace:String} AND run_id = {run:String}
        AND (has(seen_group_ids, {group:String}) OR has(admitted_group_ids, {group:String})
            OR has(rejected_group_ids, {group:String}))
    UNION ALL
    SELECT 3, 'curriculum', concat('in batch ', toString(number)), batch_hash,
        0, kafka_timestamp, kafka_topic, kafka_partition, kafka_offset
    FROM batch_groups FINAL
    WHERE namespace = {namespace:String} AND run_id = {run:String} AND group_id = {group:String}
    UNION ALL
    SELECT 4, 'trainer', concat(fate, ' in step ', toString(step)), ifNull(reason, ''),
        count(), max(ended_at), any(kafka_topic), any(kafka_partition), any(kafka_offset)
    FROM step_members FINAL
    WHERE namespace = {namespace:String} AND run_id = {run:String} AND group_id = {group:String}
    GROUP BY fate, step, reason
    UNION ALL
    SELECT 5, stage, concat('dropped: ', reason), detail, trajectories, dropped_at,
        kafka_topic, kafka_partition, kafka_offset
    FROM drops FINAL
    WHERE namespace = {namespace:String} AND run_id = {run:String} AND unit = 'group' AND unit_id = {group:String}
)
ORDER BY rank, at
