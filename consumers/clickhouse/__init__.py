"""Every topic into typed ClickHouse tables, and saved questions over them.

rows        a record becomes rows of tables; pure
sink        topics in, inserted blocks out, offsets committed afterwards
store       ClickHouse itself: client, columns, migrations
ask         saved questions, and how answers look
maintain    rebuild, forget, namespaces
"""

from typing import TYPE_CHECKING

from rollbus.schemas.lazy import lazy_names

if TYPE_CHECKING:
    from rollbus.consumers.clickhouse.questions.output import as_csv, as_json, as_table
    from rollbus.consumers.clickhouse.questions.saved import (
        Answer,
        SavedQuery,
        ask,
        list_queries,
        load_query,
        run_query,
    )
    from rollbus.consumers.clickhouse.sink.sink import Sink, run_sink, run_sink_async
    from rollbus.consumers.clickhouse.sink.status import read_sink_status
    from rollbus.consumers.clickhouse.store.migrator import migrate
    from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings, SinkSettings

__all__ = [
    "Answer",
    "ClickHouseSettings",
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
    "read_sink_status",
    "run_query",
    "run_sink",
    "run_sink_async",
]

__getattr__ = lazy_names(
    __name__,
    {
        "Answer": "questions.saved",
        "ClickHouseSettings": "store.settings",
        "SavedQuery": "questions.saved",
        "Sink": "sink.sink",
        "SinkSettings": "store.settings",
        "as_csv": "questions.output",
        "as_json": "questions.output",
        "as_table": "questions.output",
        "ask": "questions.saved",
        "list_queries": "questions.saved",
        "load_query": "questions.saved",
        "migrate": "store.migrator",
        "read_sink_status": "sink.status",
        "run_query": "questions.saved",
        "run_sink": "sink.sink",
        "run_sink_async": "sink.sink",
    },
)
