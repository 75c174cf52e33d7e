-- What producers wrote: one row per event, and one typed table per kind that carries more than the envelope.
-- ${origin} stands for the columns that every row has: its place in the log, and what decides between two rows of one id.
-- Small granules: these ids are looked up a hundred at a time, and are far apart.
-- Every part of up to 16 MB is one file instead of a dozen: small inserts make many parts. A table whose rows are looked
-- up by id has blocks of 8 KB, since a row costs the block that it is in. Indexes are on ids that a table is not ordered by;
-- the keys are ids in eight bytes, which count and join several times faster than text.

CREATE TABLE IF NOT EXISTS events
(
    namespace LowCardinality(String),
    event_id String,
    kind LowCardinality(String),
    episode_id String,
    root_episode_id String,
    writer_id String,
    sequence Int64 CODEC(Delta, ZSTD(1)),
    occurred_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    episode_started_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    producer LowCardinality(String),
    environment LowCardinality(String),
    detail String CODEC(ZSTD(3)) COMMENT 'JSON of what has no typed table: WriterClosed, Excluded, AliasDeclared',
    ${origin},
    episode_key UInt64 MATERIALIZED cityHash64(episode_id),
    INDEX by_event event_id TYPE bloom_filter(0.001) GRANULARITY 8,
    INDEX by_offset kafka_offset TYPE bloom_filter(0.001) GRANULARITY 8,
    INDEX by_episode episode_id TYPE bloom_filter(0.0001) GRANULARITY 1
)
ENGINE = ReplacingMergeTree(first_wins)
PARTITION BY toYYYYMM(episode_started_at)
ORDER BY (namespace, episode_id, writer_id, sequence, event_id)
SETTINGS index_granularity = 1024, non_replicated_deduplication_window = 2000, min_bytes_for_full_part_storage = 16777216, min_compress_block_size = 8192;

CREATE TABLE IF NOT EXISTS episodes
(
    namespace LowCardinality(String),
    episode_id String,
    event_id String,
    root_episode_id String,
    parent_episode_id Nullable(String),
    task LowCardinality(String),
    agent LowCardinality(String),
    example_id Nullable(String),
    group_id Nullable(String),
    group_size Nullable(Int64),
    labels Map(LowCardinality(String), String),
    resampled Bool,
    producer LowCardinality(String),
    environment LowCardinality(String),
    started_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    ${origin},
    episode_key UInt64 MATERIALIZED cityHash64(episode_id),
    INDEX by_root root_episode_id TYPE bloom_filter(0.001) GRANULARITY 1
)
ENGINE = ReplacingMergeTree(first_wins)
PARTITION BY toYYYYMM(started_at)
ORDER BY (namespace, episode_id)
SETTINGS index_granularity = 1024, non_replicated_deduplication_window = 2000, min_bytes_for_full_part_storage = 16777216;

CREATE TABLE IF NOT EXISTS episode_ends
(
    namespace LowCardinality(String),
    episode_id String,
    event_id String,
    stop_reason LowCardinality(String),
    error Nullable(String),
    writer_ids Array(String),
    episode_started_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    ended_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    ${origin}
)
ENGINE = ReplacingMergeTree(first_wins)
PARTITION BY toYYYYMM(episode_started_at)
ORDER BY (namespace, episode_id, event_id)
SETTINGS non_replicated_deduplication_window = 2000, min_bytes_for_full_part_storage = 16777216;

-- `by_words` has a bit for every four letters in a row of 256 turns: words that few turns have are looked for in few of them.
-- Merges make it, and no insert, which would take two thirds longer.
CREATE TABLE IF NOT EXISTS turns
(
    namespace LowCardinality(String),
    episode_id String,
    event_id String,
    writer_id String,
    sequence Int64,
    function LowCardinality(String),
    model LowCardinality(String),
    policy_version Nullable(Int64),
    response_id Nullable(String),
    choice Int64,
    prefix_count Int64,
    prefix_hash String,
    added_messages String CODEC(ZSTD(3)) COMMENT 'JSON list',
    completion String CODEC(ZSTD(3)) COMMENT 'JSON',
    completion_text Nullable(String) CODEC(ZSTD(3)),
    logprob_mode LowCardinality(String),
    temperature Nullable(Float64),
    top_p Nullable(Float64),
    top_k Nullable(Int64),
    min_p Nullable(Float64),
    frequency_penalty Nullable(Float64),
    presence_penalty Nullable(Float64),
    repetition_penalty Nullable(Float64),
    seed Nullable(Int64),
    max_tokens Nullable(Int64),
    finish_reason LowCardinality(Nullable(String)),
    tools_hash String,
    tools Nullable(String) CODEC(ZSTD(3)),
    prompt_tokens Nullable(Int64),
    completion_tokens Nullable(Int64),
    latency_ms Nullable(Int64),
    streamed Bool,
    server LowCardinality(String) COMMENT 'scheme, host and port of the model server; empty if not known',
    trainable Bool,
    untrainable_reason LowCardinality(Nullable(String)),
    episode_started_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    occurred_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    ${origin},
    INDEX by_words lower(concat(added_messages, completion)) TYPE ngrambf_v1(4, 8192, 1, 0) GRANULARITY 1
)
ENGINE = ReplacingMergeTree(first_wins)
PARTITION BY toYYYYMM(episode_started_at)
ORDER BY (namespace, episode_id, writer_id, sequence, event_id)
SETTINGS index_granularity = 256, non_replicated_deduplication_window = 2000, min_bytes_for_full_part_storage = 16777216, min_compress_block_size = 8192;

CREATE TABLE IF NOT EXISTS turn_tokens
(
    namespace LowCardinality(String),
    episode_id String,
    event_id String,
    prompt_token_ids Array(Int32) CODEC(T64, ZSTD(3)),
    completion_token_ids Array(Int32) CODEC(T64, ZSTD(3)),
    logprobs Array(Float32) CODEC(ZSTD(3)),
    episode_started_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    ${origin}
)
ENGINE = ReplacingMergeTree(first_wins)
PARTITION BY toYYYYMM(episode_started_at)
ORDER BY (namespace, episode_id, event_id)
SETTINGS non_replicated_deduplication_window = 2000, min_bytes_for_full_part_storage = 16777216;

CREATE TABLE IF NOT EXISTS tool_calls
(
    namespace LowCardinality(String),
    episode_id String,
    event_id String,
    writer_id String,
    sequence Int64,
    name LowCardinality(String),
    tool_call_id Nullable(String),
    arguments String CODEC(ZSTD(3)),
    result Nullable(String) CODEC(ZSTD(3)),
    error Nullable(String),
    latency_ms Nullable(Int64),
    episode_started_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    occurred_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    ${origin}
)
ENGINE = ReplacingMergeTree(first_wins)
PARTITION BY toYYYYMM(episode_started_at)
ORDER BY (namespace, episode_id, writer_id, sequence, event_id)
SETTINGS non_replicated_deduplication_window = 2000, min_bytes_for_full_part_storage = 16777216;

-- A reward reported by alias is here twice under one event id: without its episode (topic aliases), and with it.
CREATE TABLE IF NOT EXISTS rewards
(
    namespace LowCardinality(String),
    episode_id String,
    event_id String,
    name LowCardinality(String),
    value Nullable(Float64),
    alias Nullable(String),
    turn_event_id Nullable(String),
    source LowCardinality(String),
    supersedes Nullable(String),
    retracted Bool,
    comment Nullable(String) CODEC(ZSTD(3)),
    signal LowCardinality(String) COMMENT 'what the user did next, where the report gives no value',
    episode_started_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    occurred_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    ${origin}
)
ENGINE = ReplacingMergeTree(first_wins)
PARTITION BY toYYYYMM(episode_started_at)
ORDER BY (namespace, episode_id, event_id)
SETTINGS non_replicated_deduplication_window = 2000, min_bytes_for_full_part_storage = 16777216;
