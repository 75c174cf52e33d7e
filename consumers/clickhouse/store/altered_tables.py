"""Tables whose columns are not those of the migrations: somebody has renamed or dropped one by hand.

Every insert and question would fail on such a table, each with an error of its own. It is named here, once.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.schemas.errors import ConfigurationError, DataLossError

_TABLE = re.compile(r"CREATE TABLE IF NOT EXISTS (\w+)\s*\((.*)\)\s*ENGINE", re.DOTALL)
_OTHER_DEFINITIONS = ("INDEX", "PROJECTION", "CONSTRAINT")
"""First words of definitions that are not columns."""
ASIDE_SUFFIX = "_altered"
"""Ends the new name of a table that a rebuild has replaced."""


class ColumnDifference(NamedTuple):
    """How the columns of a table differ from those of its migrations."""

    missing: list[str]
    unknown: list[str]
    """Columns that no statement names, such as those under a new name."""


def find_altered_tables(client: ClickHouse, statements: Iterable[str]) -> dict[str, ColumnDifference]:
    """Return the tables that lack columns of the statements; a table that does not exist is not altered."""
    _, rows = client.query(
        "SELECT table, groupArray(name) FROM system.columns WHERE database = currentDatabase() GROUP BY table"
    )
    present = {str(table): list(map(str, names)) for table, names in rows}
    altered = {}
    for table, columns in _columns_by_table(statements).items():
        if table in present and (missing := [name for name in columns if name not in present[table]]):
            altered[table] = ColumnDifference(missing, [name for name in present[table] if name not in columns])
    return altered


def require_unaltered(client: ClickHouse, statements: Iterable[str]) -> None:
    """Raise DataLossError that names each table and column that was altered, and what brings them back."""
    altered = find_altered_tables(client, statements)
    if not altered:
        return
    lines = [
        f"table {client.database}.{table} lacks {_describe_columns(difference.missing)}"
        + (f", and has {_describe_columns(difference.unknown)}" if difference.unknown else "")
        for table, difference in sorted(altered.items())
    ]
    raise DataLossError(
        f"{'; '.join(lines)}: altered by hand. Name the columns as before, or let "
        f"`rollbus sink rebuild {' '.join(sorted(altered))}` make them from the migrations and fill them from the log; "
        f"it keeps the altered ones under names that end in {ASIDE_SUFFIX}"
    )


def set_altered_tables_aside(client: ClickHouse, statements: Iterable[str]) -> list[str]:
    """Rename altered tables, so that they count as lost, and return their names.

    Raises ConfigurationError if a table that an earlier rebuild has renamed is still there.
    """
    altered = sorted(find_altered_tables(client, statements))
    for table in altered:
        _, rows = client.query(
            "SELECT 1 FROM system.tables WHERE database = currentDatabase() AND name = {name:String}",
            {"name": table + ASIDE_SUFFIX},
        )
        if rows:
            raise ConfigurationError(
                f"table {table}{ASIDE_SUFFIX} is there from an earlier rebuild; drop it or rename it first"
            )
        client.command(f"RENAME TABLE {table} TO {table}{ASIDE_SUFFIX}")
    return altered


def _describe_columns(names: list[str]) -> str:
    return f"column{'s' if len(names) > 1 else ''} {', '.join(names)}"


def _columns_by_table(statements: Iterable[str]) -> Mapping[str, list[str]]:
    tables = filter(None, map(_TABLE.match, statements))
    return {table[1]: list(_column_names(table[2])) for table in tables}


def _column_names(body: str) -> Iterator[str]:
    """Yield the first word of each definition that is of a column."""
    for definition in _split_definitions(body):
        words = definition.split(maxsplit=1)
        if words and words[0] not in _OTHER_DEFINITIONS:
            yield words[0].strip("`")


def _split_definitions(body: str) -> Iterator[str]:
    """Split at commas outside of parentheses and quoted texts."""
    depth, is_quoted, start = 0, False, 0
    for place, sign in enumerate(body):
        if sign == "'":
            is_quoted = not is_quoted
        elif not is_quoted:
            depth += (sign == "(") - (sign == ")")
            if sign == "," and depth == 0:
                yield body[start:place]
                start = place + 1
    yield body[start:]
