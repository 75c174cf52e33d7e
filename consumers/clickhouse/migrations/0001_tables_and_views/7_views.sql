-- What queries start from.

-- The newest score of each trajectory: latest_scores(namespace = 'rollbus.').
-- Few scores are revised, so leaving out those that were is cheaper than finding the newest of each.
CREATE OR REPLACE VIEW latest_scores AS
SELECT *, trajectory_key
FROM scores FINAL
WHERE namespace = {namespace:String}
    AND (trajectory_key, revision) NOT IN
    (
        SELECT trajectory_key, arrayJoin(range(max(revision)))
        FROM scores
        WHERE namespace = {namespace:String} AND revision > 0
        GROUP BY trajectory_key
    );

-- The one definition of a trajectory's fate: trained wins over dropped, the first of several drops counts, what is neither
-- is pending. Every aggregate takes repeats without harm, so no FINAL is needed.
CREATE OR REPLACE VIEW trajectory_fates AS
WITH
    (
        SELECT max(kafka_timestamp) FROM run_commands
        WHERE namespace = {namespace:String} AND run_id = {run:String} AND command = 'removed'
    ) > (
        SELECT max(kafka_timestamp) FROM config_applied
        WHERE namespace = {namespace:String} AND run_id = {run:String}
    ) AS is_removed
SELECT
    any(id) AS trajectory_id,
    trajectory_key,
    multiIf(max(is_trained), 'trained', max(is_dropped) OR is_removed, 'dropped', 'pending') AS fate,
    minIf(in_step, is_trained) AS step,
    multiIf(max(is_trained), '', max(is_dropped), argMinIf(drop_reason, (at, drop_stage), is_dropped),
        is_removed, 'run_removed', '') AS reason,
    if(max(is_trained), '', argMinIf(drop_stage, (at, drop_stage), is_dropped)) AS stage,
    if(max(is_trained), '', argMinIf(drop_unit, (at, drop_stage), is_dropped)) AS unit,
    if(max(is_trained), '', argMinIf(drop_unit_id, (at, drop_stage), is_dropped)) AS unit_id,
    uniqExactIf(in_step, is_trained) AS times_trained,
    minIf(in_step, is_trained) != maxIf(in_step, is_trained) AS trained_again
FROM
(
    SELECT trajectory_key, trajectory_id AS id, false AS is_trained, false AS is_dropped, 0 AS in_step,
        '' AS drop_reason, '' AS drop_stage, '' AS drop_unit, '' AS drop_unit_id,
        toDateTime64(0, 3, 'UTC') AS at
    FROM trajectories
    WHERE namespace = {namespace:String}
    UNION ALL
    SELECT trajectory_key, trajectory_id, false, false, 0, '', '', '', '', toDateTime64(0, 3, 'UTC')
    FROM scores
    WHERE namespace = {namespace:String}
    UNION ALL
    SELECT trajectory_key, trajectory_id, false, false, 0, '', '', '', '', toDateTime64(0, 3, 'UTC')
    FROM group_members
    WHERE namespace = {namespace:String} AND run_id = {run:String}
    UNION ALL
    SELECT trajectory_key, trajectory_id, fate = 'trained', fate = 'dropped', step,
        ifNull(reason, ''), 'trainer', 'trajectory', trajectory_id, ended_at
    FROM step_members
    WHERE namespace = {namespace:String} AND run_id = {run:String}
    UNION ALL
    SELECT trajectory_key, trajectory_id, false, true, 0, reason, stage, unit, unit_id, dropped_at
    FROM drop_trajectories
    WHERE namespace = {namespace:String} AND run_id IN ('', {run:String})
)
GROUP BY trajectory_key;

-- Episodes that have begun and have neither a trajectory nor a drop: open_episodes(namespace = 'rollbus.'). One is given
-- up once no event of its own has come for the time that assembly is set to; what is said of it keeps it open no longer.
-- One that has paused is waited for longer; is_paused: nothing has resumed it yet.
CREATE OR REPLACE VIEW open_episodes AS
WITH
    (
        SELECT argMax((JSONExtractInt(content, 'inactivity_ms'), JSONExtractInt(content, 'gap_grace_ms'),
            JSONExtractInt(content, 'pause_ms')), kafka_timestamp)
        FROM config_applied
        WHERE namespace = {namespace:String} AND stage = 'assembly'
    ) AS patience,
    begun AS
    (
        SELECT episode_key, any(episode_id) AS id, min(kafka_timestamp) AS at
        FROM episodes
        WHERE namespace = {namespace:String}
            AND episode_key NOT IN (SELECT episode_key FROM trajectories WHERE namespace = {namespace:String})
            AND episode_key NOT IN
            (
                SELECT cityHash64(unit_id) FROM drops WHERE namespace = {namespace:String} AND unit = 'episode'
            )
        GROUP BY episode_key
    )
SELECT
    begun.id AS episode_id,
    begun.at AS began_at,
    of_episode.newest AS newest_event_at,
    of_episode.ended > 0 AS has_ended,
    of_episode.ended = 0 AND of_episode.paused = toUnixTimestamp64Milli(of_episode.newest) AS is_paused,
    if(patience.1 = 0, NULL, fromUnixTimestamp64Milli(least(
        greatest(toUnixTimestamp64Milli(of_episode.newest) + patience.1,
            if(of_episode.paused > 0, of_episode.paused + patience.3, 0)),
        if(of_episode.ended > 0, of_episode.ended + patience.2, toInt64(9000000000000))
    ), 'UTC')) AS given_up_at
FROM begun
INNER JOIN
(
    SELECT episode_key, max(kafka_timestamp) AS newest,
        maxIf(toUnixTimestamp64Milli(kafka_timestamp), kind = 'EpisodeEnded') AS ended,
        maxIf(toUnixTimestamp64Milli(kafka_timestamp), kind = 'WriterClosed' AND JSONExtractBool(detail, 'paused')) AS paused
    FROM events
    WHERE namespace = {namespace:String} AND kind NOT IN ('RewardReported', 'Excluded')
        AND episode_key IN (SELECT episode_key FROM begun)
    GROUP BY episode_key
) AS of_episode ON of_episode.episode_key = begun.episode_key;

-- Every place in the log that has a row, once per row: stored_places(namespace = 'rollbus.').
CREATE OR REPLACE VIEW stored_places AS
SELECT kafka_topic, kafka_partition, kafka_offset
FROM merge(currentDatabase(), '^(events|trajectories|reward_revisions|scores|groups|curriculum_states|batches|steps|step_outcomes|policy_versions|policy_decisions|evaluations|run_commands|drops|dead_letters|producer_reports|config_applied|replays|data_set_members)$')
WHERE namespace = {namespace:String};
