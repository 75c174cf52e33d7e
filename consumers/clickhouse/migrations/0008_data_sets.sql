-- What a person has picked by name. The newest change of a trajectory says whether it is a member.

CREATE TABLE IF NOT EXISTS data_set_members
(
    namespace LowCardinality(String),
    data_set LowCardinality(String),
    trajectory_id String,
    episode_id String,
    is_member Bool,
    changed_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    ${origin}
)
ENGINE = ReplacingMergeTree(first_wins)
ORDER BY (namespace, data_set, trajectory_id, changed_at)
SETTINGS non_replicated_deduplication_window = 2000, min_bytes_for_full_part_storage = 16777216;

-- Every place in the log that has a row, once per row: stored_places(namespace = 'rollbus.').
CREATE OR REPLACE VIEW stored_places AS
SELECT kafka_topic, kafka_partition, kafka_offset
FROM merge(currentDatabase(), '^(events|trajectories|reward_revisions|scores|groups|curriculum_states|batches|steps|step_outcomes|policy_versions|policy_decisions|evaluations|run_commands|drops|dead_letters|producer_reports|config_applied|replays|data_set_members)$')
WHERE namespace = {namespace:String};
