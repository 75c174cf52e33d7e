-- name: funnel_run
-- One row: what a run's groups and batches came to since a time, what its scores are of, and what it has trained so far.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
-- param model String = 'agent' : the run's model
-- param since_ms Int64 = 0 : milliseconds since 1970, by the broker's clock
-- param recent_ms Int64 = 0 : the same, of the time that the pace is taken from
WITH
    fromUnixTimestamp64Milli({since_ms:Int64}, 'UTC') AS since,
    closed AS
    (
        SELECT group_id, max(has_signal) AS has_signal, any(size) AS size, min(kafka_timestamp) AS at
        FROM groups
        WHERE namespace = {namespace:String} AND run_id = {run:String} AND kafka_timestamp >= since
        GROUP BY group_id
    ),
    taken AS
    (
        SELECT group_id FROM batch_groups WHERE namespace = {namespace:String} AND run_id = {run:String}
        UNION DISTINCT
        SELECT unit_id FROM drops
        WHERE namespace = {namespace:String} AND run_id = {run:String} AND unit = 'group'
        UNION DISTINCT
        SELECT group_id FROM group_members -- nobody is left of it, such as after a rollback
        WHERE namespace = {namespace:String} AND run_id = {run:String} AND kafka_timestamp >= since
        GROUP BY group_id
        HAVING min(trajectory_key IN
        (
            SELECT trajectory_key FROM drop_trajectories
            WHERE namespace = {namespace:String} AND run_id = {run:String} AND kafka_timestamp >= since
        ))
    ),
    short AS
    (
        SELECT unit_id, any(trajectories) AS members
        FROM drops
        WHERE namespace = {namespace:String} AND run_id = {run:String} AND reason = 'incomplete_group'
            AND kafka_timestamp >= since
        GROUP BY unit_id
    ),
    mismatched AS
    (
        SELECT ifNull(toString(scores.example_id), '') AS example, uniqExact(scores.prompt_hash) AS prompts
        FROM scores
        WHERE namespace = {namespace:String} AND kafka_timestamp >= since AND trajectory_id IN
        (
            SELECT trajectory_id FROM drop_trajectories
            WHERE namespace = {namespace:String} AND run_id = {run:String} AND reason = 'group_mismatch'
                AND unit = 'trajectory' AND kafka_timestamp >= since
        )
        GROUP BY example
    ),
    seen AS
    (
        SELECT
            arraySort(groupUniqArray(6)(toString(task))) AS tasks,
            arraySort(groupUniqArray(6)(toString(agent))) AS agents,
            arraySort(groupUniqArray(6)(toString(model))) AS models
        FROM scores
        WHERE namespace = {namespace:String} AND kafka_timestamp >= since
    )
SELECT
    (SELECT toUnixTimestamp64Milli(max(kafka_timestamp)) FROM episodes WHERE namespace = {namespace:String}) AS newest_episode_ms,
    (
        SELECT toUnixTimestamp64Milli(min(kafka_timestamp)) FROM episodes
        WHERE namespace = {namespace:String} AND kafka_timestamp >= since AND kafka_timestamp >
        (
            SELECT max(kafka_timestamp) FROM steps
            WHERE namespace = {namespace:String} AND run_id = {run:String} AND state IN ('completed', 'skipped')
        )
    ) AS owed_since_ms,
    (SELECT count() FROM closed) AS groups,
    (SELECT countIf(has_signal) FROM closed) AS groups_with_signal,
    (
        SELECT arrayReverseSort(groupArray(at_ms)) FROM
        (
            SELECT toUnixTimestamp64Milli(at) AS at_ms FROM closed
            WHERE has_signal AND at >= fromUnixTimestamp64Milli({recent_ms:Int64}, 'UTC')
            ORDER BY at DESC LIMIT 1000
        )
    ) AS recent_groups_ms,
    (SELECT toUnixTimestamp64Milli(minIf(at, has_signal)) FROM closed) AS first_group_ms,
    (SELECT count() FROM closed WHERE has_signal AND group_id NOT IN (SELECT group_id FROM taken)) AS waiting_groups,
    (
        SELECT toUnixTimestamp64Milli(min(at)) FROM closed
        WHERE has_signal AND group_id NOT IN (SELECT group_id FROM taken)
    ) AS oldest_waiting_ms,
    (SELECT count() FROM short) AS short_groups,
    (SELECT ifNotFinite(avg(members), 0) FROM short) AS members_of_short,
    (SELECT argMax(example, (prompts, example)) FROM mismatched) AS mismatched_example,
    (SELECT max(prompts) FROM mismatched) AS prompts_of_example,
    (SELECT tasks FROM seen) AS tasks,
    (SELECT agents FROM seen) AS agents,
    (SELECT models FROM seen) AS models,
    (
        SELECT uniqExact(batch_hash) FROM batches
        WHERE namespace = {namespace:String} AND run_id = {run:String} AND batch_hash NOT IN
        (
            SELECT batch_hash FROM steps
            WHERE namespace = {namespace:String} AND run_id = {run:String} AND state IN ('completed', 'skipped')
        )
    ) AS open_batches,
    (SELECT max(step) FROM steps WHERE namespace = {namespace:String} AND run_id = {run:String} AND state = 'completed') AS step,
    (
        SELECT arraySort(groupUniqArray(1000)(version)) FROM policy_versions
        WHERE namespace = {namespace:String} AND model = {model:String}
    ) AS versions,
    (
        SELECT transform(argMax(toString(command), kafka_offset), ['pause', 'stop'], ['paused', 'stopped'], '')
        FROM run_commands
        WHERE namespace = {namespace:String} AND run_id = {run:String} AND command IN ('pause', 'resume', 'stop')
    ) AS held
