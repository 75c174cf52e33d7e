-- Replays of the log: what each read, with which code and configuration, and what came out. The newest row of a name holds.

CREATE TABLE IF NOT EXISTS replays
(
    namespace LowCardinality(String),
    name String,
    replay_namespace LowCardinality(String),
    source_namespace LowCardinality(String),
    state LowCardinality(String),
    stages Array(LowCardinality(String)),
    ranges Array(Tuple(topic LowCardinality(String), partition Int32, from_offset Int64, to_offset Int64)) CODEC(ZSTD(1)),
    missing Array(Tuple(topic LowCardinality(String), partition Int32, from_offset Int64, to_offset Int64)) CODEC(ZSTD(1)),
    from_at Nullable(DateTime64(3, 'UTC')),
    to_at Nullable(DateTime64(3, 'UTC')),
    rewards LowCardinality(String),
    scores LowCardinality(String),
    overrides Map(String, String) CODEC(ZSTD(3)),
    code_hash String,
    version LowCardinality(String),
    exclusions Int64,
    digests Map(String, String),
    records Map(LowCardinality(String), Int64),
    dead_letters Int64,
    started_at DateTime64(3, 'UTC'),
    finished_at Nullable(DateTime64(3, 'UTC')),
    kafka_topic LowCardinality(String),
    kafka_partition Int32,
    kafka_offset Int64 CODEC(Delta, ZSTD(1)),
    kafka_timestamp DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    ingested_at DateTime64(3, 'UTC') DEFAULT now64(3)
)
ENGINE = ReplacingMergeTree(kafka_offset)
ORDER BY (namespace, name)
SETTINGS non_replicated_deduplication_window = 2000, min_bytes_for_full_part_storage = 16777216;
