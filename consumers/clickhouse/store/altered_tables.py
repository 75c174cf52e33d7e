"""Tables whose columns are not those of the migrations: somebody has renamed or dropped one by hand.

Every insert and question would fail on such a table, each with an error of its own. It is named here, once.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.schemas.errors import ConfigurationError, DataLossError

_TABLE = re.compile(r"CREATE TABLE IF NOT EXISTS (\w+)\s*\((.*)\)\s*ENGINE", re.DOTALL)
_NO_COLUMNS = ("INDEX", "PROJECTION", "CONSTRAINT")
"""First words of definitions that are not columns."""
ASIDE = "_altered"
"""Ends the new name of a table that a rebuild has replaced."""


def find_altered(client: ClickHouse, statements: Iterable[str]) -> dict[str, tuple[list[str], list[str]]]:
    """Return by table that lacks columns: the missing columns, and the columns that the statements do not name."""
    _, rows = client.query(
        "SELECT table, groupArray(name) FROM system.columns WHERE database = currentDatabase() GROUP BY table"
    )
    present = {str(table): list(map(str, names)) for table, names in rows}
    altered = {}
    for table, columns in _columns_by_table(statements).items():
        if table in present and (missing := [name for name in columns if name not in present[table]]):
            altered[table] = (missing, [name for name in present[table] if name not in columns])
    return altered


def require_unaltered(client: ClickHouse, statements: Iterable[str]) -> None:
    """Raise DataLossError that names each table and column that was altered, and what brings them back."""
    altered = find_altered(client, statements)
    if not altered:
        return
    lines = [
        f"table {client.database}.{table} lacks {_columns(missing)}"
        + (f", and has {_columns(other_columns)}" if other_columns else "")
        for table, (missing, other_columns) in sorted(altered.items())
    ]
    raise DataLossError(
        f"{'; '.join(lines)}: altered by hand. Name the columns as before, or let "
        f"`rollbus sink rebuild {' '.join(sorted(altered))}` make them from the migrations and fill them from the log; "
        f"it keeps the altered ones under names that end in {ASIDE}"
    )


def set_aside(client: ClickHouse, statements: Iterable[str]) -> list[str]:
    """Rename altered tables, so that they count as lost; return their names. Raises ConfigurationError."""
    altered = sorted(find_altered(client, statements))
    for table in altered:
        _, rows = client.query(
            "SELECT 1 FROM system.tables WHERE database = currentDatabase() AND name = {name:String}",
            {"name": table + ASIDE},
        )
        if rows:
            raise ConfigurationError(
                f"table {table}{ASIDE} is there from an earlier rebuild; drop it or rename it first"
            )
        client.command(f"RENAME TABLE {table} TO {table}{ASIDE}")
    return altered


def _columns(names: list[str]) -> str:
    return f"column{'s' if len(names) > 1 else ''} {', '.join(names)}"


def _columns_by_table(statements: Iterable[str]) -> Mapping[str, list[str]]:
    tables = filter(None, map(_TABLE.match, statements))
    return {table[1]: list(_names_of_columns(table[2])) for table in tables}


def _names_of_columns(body: str) -> Iterator[str]:
    """Yield the first word of each definition that is of a column."""
    for definition in _split_definitions(body):
        words = definition.split(maxsplit=1)
        if words and words[0] not in _NO_COLUMNS:
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
