"""Tables whose columns are not those of the migrations: somebody has renamed or dropped one by hand.

Every insert and question would fail on such a table, each with an error of its own. It is named here, once.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.schemas.errors import ConfigurationError, DataLossError

_TABLE = re.compile(r"CREATE TABLE IF NOT EXISTS (\w+)\s*\((.*)\)\s*ENGINE", re.DOTALL)
_NO_COLUMNS = ("INDEX", "PROJECTION", "CONSTRAINT")
ASIDE = "_altered"
"""Follows the name of a table that a rebuild has replaced."""


def find_altered(client: ClickHouse, statements: Iterable[str]) -> dict[str, tuple[list[str], list[str]]]:
    """Return the tables that lack columns: those that are missing, and those that the statements do not have."""
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
    """Yield the first word of each definition, which ends at a comma outside of parentheses and texts."""
    depth, quoted, word, is_new = 0, False, "", True
    for sign in f"{body},":
        if sign == "'":
            quoted = not quoted
        elif not quoted:
            depth += (sign == "(") - (sign == ")")
        if quoted or not is_new:
            is_new = is_new or (sign == "," and not quoted and depth == 0)
            continue
        if sign.isspace() and word:
            if word not in _NO_COLUMNS:
                yield word.strip("`")
            word, is_new = "", False
        elif not sign.isspace() and sign != ",":
            word += sign
