"""The columns of a table are read from its statement, whatever stands in it."""

from rollbus.consumers.clickhouse.store.altered_tables import _columns_by_table

STATEMENT = """CREATE TABLE IF NOT EXISTS episodes
(
    namespace LowCardinality(String),
    task String COMMENT 'what, who, (why)',
    tokens Array(Tuple(a Int32, b Int32)) CODEC(Delta, ZSTD(1)),
    `index` Int64 MATERIALIZED -tokens[1].1,
    INDEX by_task task TYPE bloom_filter(0.01) GRANULARITY 4
)
ENGINE = ReplacingMergeTree(tokens)
ORDER BY (namespace, task)"""


def test_columns_are_named_without_types_indexes_and_comments() -> None:
    assert _columns_by_table([STATEMENT, "CREATE OR REPLACE VIEW v AS SELECT 1"]) == {
        "episodes": ["namespace", "task", "tokens", "index"]
    }
