"""Every row of a record, as the sink writes them to several tables."""

from typing import Any

from rollbus.consumers.clickhouse.rows.rows import fills_of, part_rows
from rollbus.consumers.clickhouse.store.origin import Origin, Rows


def rows_of(record: Any, origin: Origin) -> Rows:
    """Return all rows of a record; none for one that is not stored."""
    return [(fill.table, fill.row(record, origin)) for fill in fills_of(record)] + part_rows(record, origin)
