"""Every topic into typed ClickHouse tables, and saved questions over them.

In reading order: `rows` (a record to rows; one file per family), `fills` (events to columns at once), `ranges` (records
of a partition to offset ranges), `chunk_joiner`, `columns` (columns to an insert's bytes), `kafka_source` and
`client_clickhouse` (the two services), `sink` (the order that makes delivery safe), `migrator`, `kafka_status`,
`rebuild` (with `kafka_log`, `log_files`), `forget` and `forgotten`, `saved` (questions), `output`, `chart` and
`parquet` (how answers look).
"""

from typing import TYPE_CHECKING

from rollbus.schemas.lazy import lazy_names

if TYPE_CHECKING:
    from rollbus.consumers.clickhouse.kafka_status import PartitionLag, sink_status
    from rollbus.consumers.clickhouse.migrator import migrate
    from rollbus.consumers.clickhouse.output import as_csv, as_json, as_table
    from rollbus.consumers.clickhouse.saved import Answer, SavedQuery, ask, list_queries, load_query, run_query
    from rollbus.consumers.clickhouse.settings import ClickHouseSettings, SinkSettings
    from rollbus.consumers.clickhouse.sink import Sink, run_sink, run_sink_async

__all__ = [
    "Answer",
    "ClickHouseSettings",
    "PartitionLag",
    "SavedQuery",
    "Sink",
    "SinkSettings",
    "as_csv",
    "as_json",
    "as_table",
    "ask",
    "list_queries",
    "load_query",
    "migrate",
    "run_query",
    "run_sink",
    "run_sink_async",
    "sink_status",
]

__getattr__ = lazy_names(
    __name__,
    {
        "Answer": "saved",
        "ClickHouseSettings": "settings",
        "PartitionLag": "kafka_status",
        "SavedQuery": "saved",
        "Sink": "sink",
        "SinkSettings": "settings",
        "as_csv": "output",
        "as_json": "output",
        "as_table": "output",
        "ask": "saved",
        "list_queries": "saved",
        "load_query": "saved",
        "migrate": "migrator",
        "run_query": "saved",
        "run_sink": "sink",
        "run_sink_async": "sink",
        "sink_status": "kafka_status",
    },
)
