-- Finished episodes, what they were worth, and the tokens that can be trained.

CREATE TABLE IF NOT EXISTS trajectories
(
    namespace LowCardinality(String),
    trajectory_id String,
    episode_id String,
    root_episode_id String,
    parent_episode_id Nullable(String),
    task LowCardinality(String),
    example_id Nullable(String),
    group_id Nullable(String),
    group_size Nullable(Int64),
    group_hint String,
    agent LowCardinality(String),
    principal LowCardinality(String),
    producer LowCardinality(String),
    environment LowCardinality(String),
    labels Map(LowCardinality(String), String),
    resampled Bool,
    started_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    ended_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    assembled_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    first_seen_ms Int64 CODEC(Delta, ZSTD(1)) COMMENT 'stream time of its first event',
    closed_by LowCardinality(String),
    stop_reason LowCardinality(Nullable(String)),
    turns Int64,
    tools Int64,
    rewards Int64,
    histories Int64,
    tokens Int64,
    sampled_tokens Int64,
    min_policy_version Nullable(Int64),
    max_policy_version Nullable(Int64),
    opening_hash String,
    prompt_hash String,
    tools_hash String,
    trainable Bool,
    untrainable_reason LowCardinality(Nullable(String)),
    is_rewarded_after Bool COMMENT 'a reward came after its last turn and tool call',
    partial Array(LowCardinality(String)) COMMENT 'why it may lack turns: its episode lost events, or its writers missed calls',
    config_hash String,
    ${origin},
    trajectory_key UInt64 MATERIALIZED cityHash64(trajectory_id),
    episode_key UInt64 MATERIALIZED cityHash64(episode_id),
    INDEX by_key trajectory_key TYPE bloom_filter(0.0001) GRANULARITY 1,
    INDEX by_id trajectory_id TYPE bloom_filter(0.0001) GRANULARITY 1,
    INDEX by_episode episode_id TYPE bloom_filter(0.0001) GRANULARITY 1,
    INDEX by_root root_episode_id TYPE bloom_filter(0.001) GRANULARITY 1,
    INDEX by_example example_id TYPE bloom_filter(0.001) GRANULARITY 1,
    INDEX by_opening opening_hash TYPE bloom_filter(0.001) GRANULARITY 1,
    INDEX by_any_id array(trajectory_id, episode_id, ifNull(example_id, ''), ifNull(group_id, '')) TYPE bloom_filter(0.0001) GRANULARITY 1
)
ENGINE = ReplacingMergeTree(first_wins)
PARTITION BY toYYYYMM(started_at)
ORDER BY (namespace, started_at, trajectory_key, trajectory_id)
SETTINGS index_granularity = 1024, non_replicated_deduplication_window = 2000, min_bytes_for_full_part_storage = 16777216, min_compress_block_size = 8192;

-- turn counts from 0; the conversation itself is in turns, under event_id. started_at is the trajectory's.
CREATE TABLE IF NOT EXISTS trajectory_turns
(
    namespace LowCardinality(String),
    trajectory_id String,
    episode_id String,
    turn Int64,
    event_id String,
    function LowCardinality(String),
    model LowCardinality(String),
    policy_version Nullable(Int64),
    temperature Nullable(Float64),
    top_p Nullable(Float64),
    top_k Nullable(Int64),
    min_p Nullable(Float64),
    frequency_penalty Nullable(Float64),
    presence_penalty Nullable(Float64),
    repetition_penalty Nullable(Float64),
    finish_reason LowCardinality(Nullable(String)),
    logprob_mode LowCardinality(String),
    prompt_tokens Nullable(Int64),
    completion_tokens Nullable(Int64),
    latency_ms Nullable(Int64),
    trainable Bool,
    untrainable_reason LowCardinality(Nullable(String)),
    started_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    occurred_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    ${origin},
    INDEX by_id trajectory_id TYPE bloom_filter(0.0001) GRANULARITY 1
)
ENGINE = ReplacingMergeTree(first_wins)
PARTITION BY toYYYYMM(started_at)
ORDER BY (namespace, trajectory_id, turn)
SETTINGS index_granularity = 1024, non_replicated_deduplication_window = 2000, min_bytes_for_full_part_storage = 16777216, min_compress_block_size = 8192;

-- The reports that came into force, and those that no longer are, by revision; 0 is assembly. The table grows by what is new.
CREATE TABLE IF NOT EXISTS trajectory_rewards
(
    namespace LowCardinality(String),
    trajectory_id String,
    episode_id String,
    revision Int64,
    event_id String,
    name LowCardinality(String),
    value Float64,
    turn_event_id Nullable(String),
    source LowCardinality(String),
    principal LowCardinality(String),
    signal LowCardinality(String),
    in_force Bool,
    revised_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    ${origin}
)
ENGINE = ReplacingMergeTree(first_wins)
PARTITION BY toYYYYMM(revised_at)
ORDER BY (namespace, trajectory_id, revision, event_id)
SETTINGS non_replicated_deduplication_window = 2000, min_bytes_for_full_part_storage = 16777216;

-- Token sequences to train on; span i is tokens span_starts[i] … span_ends[i] - 1 (from 0), log-probs are those of the spans.
CREATE TABLE IF NOT EXISTS histories
(
    namespace LowCardinality(String),
    trajectory_id String,
    episode_id String,
    history Int64,
    token_ids Array(Int32) CODEC(T64, ZSTD(3)),
    logprobs Array(Float32) CODEC(ZSTD(3)),
    span_starts Array(Int64) CODEC(ZSTD(3)),
    span_ends Array(Int64) CODEC(ZSTD(3)),
    span_turns Array(Int64) CODEC(ZSTD(3)),
    span_policy_versions Array(Int64) CODEC(ZSTD(3)),
    started_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    ${origin}
)
ENGINE = ReplacingMergeTree(first_wins)
PARTITION BY toYYYYMM(started_at)
ORDER BY (namespace, trajectory_id, history)
SETTINGS non_replicated_deduplication_window = 2000, min_bytes_for_full_part_storage = 16777216;

CREATE TABLE IF NOT EXISTS reward_revisions
(
    namespace LowCardinality(String),
    trajectory_id String,
    episode_id String,
    group_hint String,
    revision Int64,
    rewards Int64,
    excluded Bool,
    revised_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    ${origin}
)
ENGINE = ReplacingMergeTree(first_wins)
PARTITION BY toYYYYMM(revised_at)
ORDER BY (namespace, trajectory_id, revision)
SETTINGS non_replicated_deduplication_window = 2000, min_bytes_for_full_part_storage = 16777216;

-- Without partitions: a score carries no time of its own that stays the same when it is written again.
CREATE TABLE IF NOT EXISTS scores
(
    namespace LowCardinality(String),
    trajectory_id String,
    episode_id String,
    revision Int64,
    location_topic LowCardinality(String),
    location_partition Int64,
    location_offset Int64,
    task LowCardinality(String),
    example_id Nullable(String),
    group_id Nullable(String),
    group_size Nullable(Int64),
    group_hint String,
    agent LowCardinality(String),
    principal LowCardinality(String),
    labels Map(LowCardinality(String), String),
    resampled Bool,
    model LowCardinality(String),
    prompt_hash String,
    tools_hash String,
    opening_hash String,
    opening_sketch String,
    tokens Int64,
    sampled_tokens Int64,
    longest_history_tokens Int64,
    min_policy_version Nullable(Int64),
    max_policy_version Nullable(Int64),
    stop_reason LowCardinality(Nullable(String)),
    trainable Bool,
    untrainable_reason LowCardinality(Nullable(String)),
    outcome LowCardinality(String),
    value Nullable(Float64),
    components Map(LowCardinality(String), Float64),
    reward_version LowCardinality(String),
    error Nullable(String) CODEC(ZSTD(3)),
    excluded Bool,
    config_hash String,
    first_seen_ms Int64 CODEC(Delta, ZSTD(1)) COMMENT 'stream time of its first event',
    served_versions Array(Int64) COMMENT 'of all turns, also of those that cannot be trained',
    latency_ms Nullable(Int64) COMMENT 'of the slowest turn',
    tool_errors Int64,
    closed_by LowCardinality(String) COMMENT 'inactivity: no end came, its agent may have been killed',
    is_rewarded_after Bool COMMENT 'a reward came after its last turn and tool call',
    ${origin},
    trajectory_key UInt64 MATERIALIZED cityHash64(trajectory_id),
    INDEX by_key trajectory_key TYPE bloom_filter(0.0001) GRANULARITY 1,
    INDEX by_id trajectory_id TYPE bloom_filter(0.0001) GRANULARITY 1
)
ENGINE = ReplacingMergeTree(first_wins)
ORDER BY (namespace, first_seen_ms, trajectory_key, trajectory_id, revision)
SETTINGS index_granularity = 1024, non_replicated_deduplication_window = 2000, min_bytes_for_full_part_storage = 16777216, min_compress_block_size = 8192;

-- What components say of single turns, of each revision of a score; event_id names the report with the user's words, in `rewards`.
CREATE TABLE IF NOT EXISTS turn_rewards
(
    namespace LowCardinality(String),
    trajectory_id String,
    episode_id String,
    revision Int64,
    position Int64,
    turn_event_id String,
    component LowCardinality(String),
    value Nullable(Float64) COMMENT 'null is unclear: no reward',
    confidence Float64,
    weight Float64,
    share Float64 COMMENT 'part of the value that is in the component',
    signal LowCardinality(String) COMMENT 'the rule that spoke, or judge; empty for a reported value',
    event_id String,
    is_hint Bool COMMENT 'the words may help to answer better; distillation learns from them',
    hint String COMMENT 'how to answer better, in words of a judge; empty: the words are those of the user',
    ${origin}
)
ENGINE = ReplacingMergeTree(first_wins)
ORDER BY (namespace, trajectory_id, revision, position)
SETTINGS non_replicated_deduplication_window = 2000, min_bytes_for_full_part_storage = 16777216;
