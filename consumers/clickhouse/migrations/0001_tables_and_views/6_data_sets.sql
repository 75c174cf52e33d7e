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
