-- What each run decided and trained. Small, kept for ever, without partitions.

CREATE TABLE IF NOT EXISTS groups
(
    namespace LowCardinality(String),
    run_id LowCardinality(String),
    group_id String,
    group_key String,
    model LowCardinality(String),
    task LowCardinality(String),
    example_id Nullable(String),
    strategy LowCardinality(String),
    advantage_kind LowCardinality(String),
    size Int64,
    reward_mean Float64,
    reward_std Float64,
    reward_min Float64,
    reward_max Float64,
    has_signal Bool,
    closed_by LowCardinality(String),
    closed_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    reward_version LowCardinality(String),
    config_hash String,
    ${origin}
)
ENGINE = ReplacingMergeTree(first_wins)
ORDER BY (namespace, run_id, group_id)
SETTINGS non_replicated_deduplication_window = 2000, min_bytes_for_full_part_storage = 16777216;

CREATE TABLE IF NOT EXISTS group_members
(
    namespace LowCardinality(String),
    run_id LowCardinality(String),
    group_id String,
    trajectory_id String,
    episode_id String,
    location_topic LowCardinality(String),
    location_partition Int64,
    location_offset Int64,
    reward Float64,
    advantage Float64,
    components Map(LowCardinality(String), Float64),
    min_policy_version Int64,
    max_policy_version Int64,
    tokens Int64,
    sampled_tokens Int64,
    score_revision Int64,
    resampled Bool,
    expected Nullable(Float64),
    expected_from LowCardinality(String),
    expected_turn Nullable(Float64) COMMENT 'with credit: turn, what each rewarded turn is held against',
    first_seen_ms Int64 CODEC(Delta, ZSTD(1)),
    principal LowCardinality(String) COMMENT 'who recorded it; empty if nobody signed it',
    turn_advantages Map(String, Float64) COMMENT 'by event id of the turn; empty if all have `advantage`',
    hints Map(String, String) COMMENT 'by event id of the turn: the report whose words are a hint; empty if the trajectory has them',
    closed_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    ${origin},
    trajectory_key UInt64 MATERIALIZED cityHash64(trajectory_id),
    INDEX by_key trajectory_key TYPE bloom_filter(0.0001) GRANULARITY 1,
    INDEX by_trajectory trajectory_id TYPE bloom_filter(0.0001) GRANULARITY 1
)
ENGINE = ReplacingMergeTree(first_wins)
ORDER BY (namespace, run_id, group_id, trajectory_id)
SETTINGS index_granularity = 1024, non_replicated_deduplication_window = 2000, min_bytes_for_full_part_storage = 16777216, min_compress_block_size = 8192;

CREATE TABLE IF NOT EXISTS curriculum_states
(
    namespace LowCardinality(String),
    run_id LowCardinality(String),
    window Int64,
    mode LowCardinality(String),
    percentile Float64,
    last_expansion_window Int64,
    total_groups Nullable(Int64),
    seen_group_ids Array(String),
    admitted_group_ids Array(String),
    rejected_group_ids Array(String),
    reward_mean Nullable(Float64),
    closed_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    mode_state String CODEC(ZSTD(3)),
    config_hash String,
    ${origin}
)
ENGINE = ReplacingMergeTree(first_wins)
ORDER BY (namespace, run_id, window)
SETTINGS non_replicated_deduplication_window = 2000, min_bytes_for_full_part_storage = 16777216;

CREATE TABLE IF NOT EXISTS batches
(
    namespace LowCardinality(String),
    run_id LowCardinality(String),
    batch_hash String,
    model LowCardinality(String),
    number Int64,
    window Int64,
    groups Int64,
    trajectories Int64,
    newest_policy_version Int64,
    cut_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    config_hash String,
    ${origin}
)
ENGINE = ReplacingMergeTree(first_wins)
ORDER BY (namespace, run_id, batch_hash)
SETTINGS non_replicated_deduplication_window = 2000, min_bytes_for_full_part_storage = 16777216;

CREATE TABLE IF NOT EXISTS batch_groups
(
    namespace LowCardinality(String),
    run_id LowCardinality(String),
    batch_hash String,
    number Int64,
    position Int64,
    group_id String,
    ${origin},
    INDEX by_group group_id TYPE bloom_filter(0.001) GRANULARITY 1
)
ENGINE = ReplacingMergeTree(first_wins)
ORDER BY (namespace, run_id, batch_hash, position)
SETTINGS non_replicated_deduplication_window = 2000, min_bytes_for_full_part_storage = 16777216, min_compress_block_size = 8192;

-- One row per ledger record: state is started, completed, skipped or failed. attempt is 0 where the record has none.
CREATE TABLE IF NOT EXISTS steps
(
    namespace LowCardinality(String),
    run_id LowCardinality(String),
    step Int64,
    state LowCardinality(String),
    attempt Int64,
    model LowCardinality(String),
    batch_hash String,
    batch_number Int64,
    base_version Int64,
    policy_version Nullable(Int64),
    trained Int64,
    dropped Int64,
    metrics Map(LowCardinality(String), Float64),
    reason LowCardinality(Nullable(String)),
    error_class LowCardinality(Nullable(String)),
    message Nullable(String) CODEC(ZSTD(3)),
    final Bool,
    started_at Nullable(DateTime64(3, 'UTC')),
    ended_at Nullable(DateTime64(3, 'UTC')),
    ${origin}
)
ENGINE = ReplacingMergeTree(first_wins)
ORDER BY (namespace, run_id, step, state, attempt)
SETTINGS non_replicated_deduplication_window = 2000, min_bytes_for_full_part_storage = 16777216;

-- Every trajectory of a completed or skipped step: trained with its lag, or dropped with its reason.
CREATE TABLE IF NOT EXISTS step_members
(
    namespace LowCardinality(String),
    run_id LowCardinality(String),
    step Int64,
    batch_hash String,
    group_id String,
    trajectory_id String,
    fate LowCardinality(String),
    reason LowCardinality(Nullable(String)),
    lag Nullable(Int64),
    advantage Nullable(Float64),
    sampled_tokens Nullable(Int64),
    policy_version Nullable(Int64),
    ended_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    ${origin},
    trajectory_key UInt64 MATERIALIZED cityHash64(trajectory_id),
    mark UInt128 MATERIALIZED if(fate = 'trained', bitShiftLeft(toUInt128(step), 64),
        bitShiftLeft(toUInt128(4611686018427387904 + bitShiftLeft(toUInt64(toUnixTimestamp64Milli(ended_at)), 16)
            + byteSwap(reinterpretAsUInt16('trainer'))), 64) + cityHash64('trainer', toString(ifNull(reason, '')))),
    INDEX by_key trajectory_key TYPE bloom_filter(0.0001) GRANULARITY 1,
    INDEX by_trajectory trajectory_id TYPE bloom_filter(0.0001) GRANULARITY 1,
    INDEX by_group group_id TYPE bloom_filter(0.001) GRANULARITY 1
)
ENGINE = ReplacingMergeTree(first_wins)
ORDER BY (namespace, run_id, step, group_id, trajectory_id)
SETTINGS index_granularity = 1024, non_replicated_deduplication_window = 2000, min_bytes_for_full_part_storage = 16777216, min_compress_block_size = 8192;

CREATE TABLE IF NOT EXISTS step_outcomes
(
    namespace LowCardinality(String),
    run_id LowCardinality(String),
    step Int64,
    batch_hash String,
    batch_number Int64,
    state LowCardinality(String),
    base_version Int64,
    policy_version Int64,
    ${origin}
)
ENGINE = ReplacingMergeTree(first_wins)
ORDER BY (namespace, run_id, step, state)
SETTINGS non_replicated_deduplication_window = 2000, min_bytes_for_full_part_storage = 16777216;

-- One row per change of state; the newest changed_at is the state of a version.
CREATE TABLE IF NOT EXISTS policy_versions
(
    namespace LowCardinality(String),
    model LowCardinality(String),
    version Int64,
    parent Nullable(Int64),
    run_id LowCardinality(Nullable(String)),
    step Nullable(Int64),
    batch_hash Nullable(String),
    checkpoint String,
    state LowCardinality(String),
    reason Nullable(String),
    changed_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    ${origin}
)
ENGINE = ReplacingMergeTree(first_wins)
ORDER BY (namespace, model, version, changed_at, state)
SETTINGS non_replicated_deduplication_window = 2000, min_bytes_for_full_part_storage = 16777216;

-- One row per decision on who serves a model; numbers are what it was made on.
CREATE TABLE IF NOT EXISTS policy_decisions
(
    namespace LowCardinality(String),
    model LowCardinality(String),
    run_id LowCardinality(String),
    number Int64,
    action LowCardinality(String),
    version Nullable(Int64),
    serving Nullable(Int64),
    canary Nullable(Int64),
    share Float64,
    frozen Bool,
    reason LowCardinality(String),
    detail String,
    command_id Nullable(String),
    numbers Map(LowCardinality(String), Float64),
    decided_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    config_hash String,
    ${origin}
)
ENGINE = ReplacingMergeTree(first_wins)
ORDER BY (namespace, model, number)
SETTINGS non_replicated_deduplication_window = 2000, min_bytes_for_full_part_storage = 16777216;

-- Measured again, the last measurement counts.
CREATE TABLE IF NOT EXISTS evaluations
(
    namespace LowCardinality(String),
    evaluation_id String,
    model LowCardinality(String),
    policy_version Int64,
    run_id LowCardinality(Nullable(String)),
    name LowCardinality(String),
    episodes Int64,
    metrics Map(LowCardinality(String), Float64),
    seed Nullable(Int64),
    set_hash Nullable(String),
    evaluated_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    ${origin}
)
ENGINE = ReplacingMergeTree(evaluated_at)
ORDER BY (namespace, evaluation_id)
SETTINGS non_replicated_deduplication_window = 2000, min_bytes_for_full_part_storage = 16777216;

CREATE TABLE IF NOT EXISTS run_commands
(
    namespace LowCardinality(String),
    run_id LowCardinality(String),
    command LowCardinality(String),
    command_id String,
    comment Nullable(String),
    ${origin}
)
ENGINE = ReplacingMergeTree(first_wins)
ORDER BY (namespace, run_id, command_id)
SETTINGS non_replicated_deduplication_window = 2000, min_bytes_for_full_part_storage = 16777216;
