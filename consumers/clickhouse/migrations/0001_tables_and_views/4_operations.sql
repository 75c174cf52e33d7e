-- What was dropped, not understood or reported, and what the sink itself read.

-- run_id is empty for the stages of the namespace.
CREATE TABLE IF NOT EXISTS drops
(
    namespace LowCardinality(String),
    run_id LowCardinality(String),
    unit LowCardinality(String),
    unit_id String,
    reason LowCardinality(String),
    stage LowCardinality(String),
    trajectories Int64,
    detail String CODEC(ZSTD(3)),
    dropped_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    ${origin},
    INDEX by_unit unit_id TYPE bloom_filter(0.001) GRANULARITY 1
)
ENGINE = ReplacingMergeTree(first_wins)
ORDER BY (namespace, run_id, unit, unit_id, reason, stage)
SETTINGS index_granularity = 1024, non_replicated_deduplication_window = 2000, min_bytes_for_full_part_storage = 16777216;

-- One row per trajectory whose fate a drop decides.
CREATE TABLE IF NOT EXISTS drop_trajectories
(
    namespace LowCardinality(String),
    run_id LowCardinality(String),
    trajectory_id String,
    reason LowCardinality(String),
    stage LowCardinality(String),
    unit LowCardinality(String),
    unit_id String,
    dropped_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    ${origin},
    trajectory_key UInt64 MATERIALIZED cityHash64(trajectory_id),
    mark UInt128 MATERIALIZED bitShiftLeft(toUInt128(4611686018427387904
        + bitShiftLeft(toUInt64(toUnixTimestamp64Milli(dropped_at)), 16) + byteSwap(reinterpretAsUInt16(toString(stage)))), 64)
        + cityHash64(toString(stage), toString(reason)),
    INDEX by_trajectory trajectory_id TYPE bloom_filter(0.0001) GRANULARITY 1,
    INDEX by_unit unit_id TYPE bloom_filter(0.001) GRANULARITY 1
)
ENGINE = ReplacingMergeTree(first_wins)
ORDER BY (namespace, run_id, trajectory_key, trajectory_id, reason, stage, unit_id)
SETTINGS index_granularity = 1024, non_replicated_deduplication_window = 2000, min_bytes_for_full_part_storage = 16777216, min_compress_block_size = 8192;

-- Bytes as they came, with their origin. stage sink: what the sink itself could not read.
CREATE TABLE IF NOT EXISTS dead_letters
(
    namespace LowCardinality(String),
    stage LowCardinality(String),
    topic LowCardinality(String),
    partition Int64,
    offset Int64,
    timestamp DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    key Nullable(String) CODEC(ZSTD(3)),
    value Nullable(String) CODEC(ZSTD(3)) COMMENT 'whole where it has value_bytes, else its two ends',
    value_bytes Int64,
    value_sha256 String COMMENT 'of the whole value',
    error_class LowCardinality(String),
    message String CODEC(ZSTD(3)),
    attempt Int64,
    app_version LowCardinality(String),
    ${origin}
)
ENGINE = ReplacingMergeTree(first_wins)
PARTITION BY toYYYYMM(timestamp)
ORDER BY (namespace, stage, topic, partition, offset)
SETTINGS non_replicated_deduplication_window = 2000, min_bytes_for_full_part_storage = 16777216;

CREATE TABLE IF NOT EXISTS producer_reports
(
    namespace LowCardinality(String),
    producer LowCardinality(String),
    writer_id String,
    counters Map(LowCardinality(String), Int64),
    reported_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    ${origin}
)
ENGINE = ReplacingMergeTree(first_wins)
PARTITION BY toYYYYMM(reported_at)
ORDER BY (namespace, producer, writer_id, reported_at)
SETTINGS non_replicated_deduplication_window = 2000, min_bytes_for_full_part_storage = 16777216;

-- One row per partition and time at which it took effect.
CREATE TABLE IF NOT EXISTS config_applied
(
    namespace LowCardinality(String),
    stage LowCardinality(String),
    run_id LowCardinality(String),
    config_hash String,
    content String CODEC(ZSTD(3)),
    ${origin}
)
ENGINE = ReplacingMergeTree(first_wins)
ORDER BY (namespace, stage, run_id, config_hash, kafka_topic, kafka_partition, kafka_offset)
SETTINGS non_replicated_deduplication_window = 2000, min_bytes_for_full_part_storage = 16777216;

CREATE TABLE IF NOT EXISTS sink_ranges
(
    namespace LowCardinality(String),
    kafka_topic LowCardinality(String),
    kafka_partition Int32,
    from_offset Int64 COMMENT 'where the range before it ended',
    last_offset Int64 COMMENT 'of its last record',
    next_offset Int64 COMMENT 'what is committed once all its rows are in',
    end_offset Int64 COMMENT 'end of the partition when the range was cut',
    records Int64 COMMENT 'everything read, ticks too',
    stored Int64 COMMENT 'records that have rows',
    rows Int64,
    dead_letters Int64,
    bytes Int64,
    digest String COMMENT 'hash of the bytes of its records, in order',
    log String COMMENT 'cluster, id of the topic, and hash of its last record',
    ingested_at DateTime64(6, 'UTC') DEFAULT now64(6)
)
ENGINE = ReplacingMergeTree(next_offset)
ORDER BY (namespace, kafka_topic, kafka_partition, from_offset)
SETTINGS min_bytes_for_full_part_storage = 16777216
COMMENT 'What the sink read, range by range; written before the rows of the range, so that a restart rebuilds the same one';
