-- Answers within a second over a million trajectories, lineage within a tenth of one, and small parts in single files.

-- Ids that are looked up, where the table is not ordered by them.
ALTER TABLE events ADD INDEX IF NOT EXISTS by_event event_id TYPE bloom_filter(0.001) GRANULARITY 8;
ALTER TABLE events ADD INDEX IF NOT EXISTS by_offset kafka_offset TYPE bloom_filter(0.001) GRANULARITY 8;
ALTER TABLE trajectories ADD INDEX IF NOT EXISTS by_episode episode_id TYPE bloom_filter(0.001) GRANULARITY 8;
ALTER TABLE trajectories ADD INDEX IF NOT EXISTS by_root root_episode_id TYPE bloom_filter(0.001) GRANULARITY 8;
ALTER TABLE group_members ADD INDEX IF NOT EXISTS by_trajectory trajectory_id TYPE bloom_filter(0.001) GRANULARITY 1;
ALTER TABLE batch_groups ADD INDEX IF NOT EXISTS by_group group_id TYPE bloom_filter(0.001) GRANULARITY 1;
ALTER TABLE step_members ADD INDEX IF NOT EXISTS by_trajectory trajectory_id TYPE bloom_filter(0.001) GRANULARITY 1;
ALTER TABLE step_members ADD INDEX IF NOT EXISTS by_group group_id TYPE bloom_filter(0.001) GRANULARITY 1;
ALTER TABLE drop_trajectories ADD INDEX IF NOT EXISTS by_unit unit_id TYPE bloom_filter(0.001) GRANULARITY 1;
ALTER TABLE events MATERIALIZE INDEX by_event;
ALTER TABLE events MATERIALIZE INDEX by_offset;
ALTER TABLE trajectories MATERIALIZE INDEX by_episode;
ALTER TABLE trajectories MATERIALIZE INDEX by_root;
ALTER TABLE group_members MATERIALIZE INDEX by_trajectory;
ALTER TABLE batch_groups MATERIALIZE INDEX by_group;
ALTER TABLE step_members MATERIALIZE INDEX by_trajectory;
ALTER TABLE step_members MATERIALIZE INDEX by_group;
ALTER TABLE drop_trajectories MATERIALIZE INDEX by_unit;

-- A trajectory's id in eight bytes: counting and joining a million of them is several times faster than by text.
ALTER TABLE trajectories ADD COLUMN IF NOT EXISTS trajectory_key UInt64 MATERIALIZED cityHash64(trajectory_id);
ALTER TABLE scores ADD COLUMN IF NOT EXISTS trajectory_key UInt64 MATERIALIZED cityHash64(trajectory_id);
ALTER TABLE group_members ADD COLUMN IF NOT EXISTS trajectory_key UInt64 MATERIALIZED cityHash64(trajectory_id);
ALTER TABLE step_members ADD COLUMN IF NOT EXISTS trajectory_key UInt64 MATERIALIZED cityHash64(trajectory_id);
ALTER TABLE drop_trajectories ADD COLUMN IF NOT EXISTS trajectory_key UInt64 MATERIALIZED cityHash64(trajectory_id);
ALTER TABLE trajectories MATERIALIZE COLUMN trajectory_key;
ALTER TABLE scores MATERIALIZE COLUMN trajectory_key;
ALTER TABLE group_members MATERIALIZE COLUMN trajectory_key;
ALTER TABLE step_members MATERIALIZE COLUMN trajectory_key;
ALTER TABLE drop_trajectories MATERIALIZE COLUMN trajectory_key;

-- An evaluation names the tasks that were played.
ALTER TABLE evaluations ADD COLUMN IF NOT EXISTS set_hash Nullable(String) AFTER seed;

-- The score of each trajectory that stands: latest_scores(namespace = 'rollbus.').
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

-- The one definition of a trajectory's fate, as before: trained wins over dropped, the first of several drops counts,
-- what is neither is pending. Every aggregate takes repeats without harm, so no FINAL is needed.
CREATE OR REPLACE VIEW trajectory_fates AS
SELECT
    any(id) AS trajectory_id,
    trajectory_key,
    multiIf(max(is_trained), 'trained', max(is_dropped), 'dropped', 'pending') AS fate,
    minIf(in_step, is_trained) AS step,
    if(max(is_trained), '', argMinIf(drop_reason, (at, drop_stage), is_dropped)) AS reason,
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

-- Every place in the log that has a row, once per row: stored_places(namespace = 'rollbus.').
CREATE OR REPLACE VIEW stored_places AS
SELECT kafka_topic, kafka_partition, kafka_offset
FROM merge(currentDatabase(), '^(events|trajectories|reward_revisions|scores|groups|curriculum_states|batches|steps|step_outcomes|policy_versions|evaluations|run_commands|drops|dead_letters|producer_reports|config_applied|replays)$')
WHERE namespace = {namespace:String};

-- A part of up to 16 MB is one file instead of a dozen: a part waits on disk until it is merged and swept, and small
-- inserts make many. Servers that cannot do it write parts as before.
ALTER TABLE events MODIFY SETTING min_bytes_for_full_part_storage = 16777216;
ALTER TABLE episodes MODIFY SETTING min_bytes_for_full_part_storage = 16777216;
ALTER TABLE episode_ends MODIFY SETTING min_bytes_for_full_part_storage = 16777216;
ALTER TABLE turns MODIFY SETTING min_bytes_for_full_part_storage = 16777216;
ALTER TABLE turn_tokens MODIFY SETTING min_bytes_for_full_part_storage = 16777216;
ALTER TABLE tool_calls MODIFY SETTING min_bytes_for_full_part_storage = 16777216;
ALTER TABLE rewards MODIFY SETTING min_bytes_for_full_part_storage = 16777216;
ALTER TABLE trajectories MODIFY SETTING min_bytes_for_full_part_storage = 16777216;
ALTER TABLE trajectory_turns MODIFY SETTING min_bytes_for_full_part_storage = 16777216;
ALTER TABLE trajectory_rewards MODIFY SETTING min_bytes_for_full_part_storage = 16777216;
ALTER TABLE histories MODIFY SETTING min_bytes_for_full_part_storage = 16777216;
ALTER TABLE reward_revisions MODIFY SETTING min_bytes_for_full_part_storage = 16777216;
ALTER TABLE scores MODIFY SETTING min_bytes_for_full_part_storage = 16777216;
ALTER TABLE groups MODIFY SETTING min_bytes_for_full_part_storage = 16777216;
ALTER TABLE group_members MODIFY SETTING min_bytes_for_full_part_storage = 16777216;
ALTER TABLE curriculum_states MODIFY SETTING min_bytes_for_full_part_storage = 16777216;
ALTER TABLE batches MODIFY SETTING min_bytes_for_full_part_storage = 16777216;
ALTER TABLE batch_groups MODIFY SETTING min_bytes_for_full_part_storage = 16777216;
ALTER TABLE steps MODIFY SETTING min_bytes_for_full_part_storage = 16777216;
ALTER TABLE step_members MODIFY SETTING min_bytes_for_full_part_storage = 16777216;
ALTER TABLE step_outcomes MODIFY SETTING min_bytes_for_full_part_storage = 16777216;
ALTER TABLE policy_versions MODIFY SETTING min_bytes_for_full_part_storage = 16777216;
ALTER TABLE evaluations MODIFY SETTING min_bytes_for_full_part_storage = 16777216;
ALTER TABLE run_commands MODIFY SETTING min_bytes_for_full_part_storage = 16777216;
ALTER TABLE drops MODIFY SETTING min_bytes_for_full_part_storage = 16777216;
ALTER TABLE drop_trajectories MODIFY SETTING min_bytes_for_full_part_storage = 16777216;
ALTER TABLE dead_letters MODIFY SETTING min_bytes_for_full_part_storage = 16777216;
ALTER TABLE producer_reports MODIFY SETTING min_bytes_for_full_part_storage = 16777216;
ALTER TABLE config_applied MODIFY SETTING min_bytes_for_full_part_storage = 16777216;
ALTER TABLE sink_ranges MODIFY SETTING min_bytes_for_full_part_storage = 16777216;
ALTER TABLE replays MODIFY SETTING min_bytes_for_full_part_storage = 16777216;
