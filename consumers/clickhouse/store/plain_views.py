"""The tables → a second database of plain views, for tools that list what there is and describe each.

Superset, ibis, JDBC and SQLAlchemy cannot describe a view with parameters. Some fail on a whole database that has one.
Nor do they know that a table may hold a record twice until a merge. So `rollbus_views` has each table under its own
name, without repeats, and in addition `latest_scores`, `fates` and `influence`. The views hold no rows.
"""

import logging
from contextlib import closing
from pathlib import Path

from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.migrator import split_statements
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from rollbus.schemas.errors import RejectedError
from rollbus.schemas.ids import hash_bytes

logger = logging.getLogger(__name__)

STATEMENTS_FOLDER = Path(__file__).parents[1] / "plain"
SUFFIX = "_views"
"""Of the second database, after the name of the first."""
_TABLES = (
    "SELECT table, arrayStringConcat(groupArray(name), ', ') FROM system.columns WHERE database = {database:String} "
    "AND default_kind != 'MATERIALIZED' AND table IN (SELECT name FROM system.tables WHERE database = "
    "{database:String} AND endsWith(engine, 'MergeTree') AND name != 'schema_migrations') GROUP BY table"
)
_COMMENTS = "SELECT name, comment FROM system.tables WHERE database = {database:String}"


def make_plain_views(settings: ClickHouseSettings) -> list[str]:
    """Make the views that are missing or have another statement, and return the names of these.

    A user that may not make a database gets a warning instead: the sink works without them.
    """
    views = settings.database + SUFFIX
    with closing(ClickHouse(settings, database="default")) as client:
        try:
            client.command(f"CREATE DATABASE IF NOT EXISTS {views}")
            _, comments = client.query(_COMMENTS, {"database": views})
            mark_by_view = dict(comments)
            changed_views = []
            for name, select in _selects(client, settings.database).items():
                mark = f"rollbus {hash_bytes(select.encode())[:16]}"
                if mark_by_view.get(name) != mark:
                    client.command(f"CREATE OR REPLACE VIEW {views}.{name} AS {select} COMMENT '{mark}'")
                    changed_views.append(name)
        except RejectedError as error:
            logger.warning("no plain views for other tools in database %s: %s", views, error)
            return []
    return changed_views


def _selects(client: ClickHouse, database: str) -> dict[str, str]:
    """Return each view's statement by its name; columns are named, so that a new one gives another statement."""
    _, tables = client.query(_TABLES, {"database": database})
    texts = {
        path.stem: split_statements(path.read_text(encoding="utf-8"))[0] for path in STATEMENTS_FOLDER.glob("*.sql")
    }
    return {str(name): f"SELECT {columns} FROM {database}.{name} FINAL" for name, columns in tables} | {
        name: text.replace("${database}", database) for name, text in texts.items()
    }
