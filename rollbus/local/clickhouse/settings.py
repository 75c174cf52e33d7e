"""Apply the settings of one request to a handle, and restore them afterwards if the handle outlives it.

The engine keeps SET for the life of a handle, and `readonly=1` can never be taken back; so a session's request that
sends `readonly` gets a handle of its own (`needs_own_handle`), and every other setting of a session is restored even if
the statement fails.
"""

import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rollbus.local.clickhouse.errors import Code, from_engine, refusal

logger = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*\Z")
SERVER_LIKE = {"implicit_select": "0", "allow_introspection_functions": "0"}
"""Set on every handle, because the embedded engine's defaults are looser than a server's."""
_IRREVERSIBLE = frozenset({"readonly", "allow_ddl"})


def quote(text: str) -> str:
    """A string literal of ClickHouse's SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def quote_name(name: str) -> str:
    """A quoted identifier of ClickHouse's SQL."""
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def needs_own_handle(settings: Mapping[str, str]) -> bool:
    """Whether these settings could not be taken back from a handle."""
    return not _IRREVERSIBLE.isdisjoint(settings)


def apply(handle: Any, settings: Mapping[str, str]) -> None:
    """SET the settings in one statement, and leave them set."""
    for name in settings:
        if not _NAME.match(name):
            raise refusal(Code.SYNTAX_ERROR, f"{name!r} is not the name of a setting")
    if settings:
        execute(handle, "SET " + ", ".join(f"{name} = {quote(value)}" for name, value in settings.items()))


def use(handle: Any, database: str) -> None:
    """Make a database the current one."""
    execute(handle, f"USE {quote_name(database)}")


@contextmanager
def applied(handle: Any, settings: Mapping[str, str], database: str | None, *, altered: bool) -> Iterator[None]:
    """Within the block the handle has the settings and the current database of one request.

    `altered` is whether the session may have changed settings itself; only then their values are read first.
    """
    before = SERVER_LIKE | (_changed_settings(handle, settings) if altered and settings else {})
    previous_database = execute(handle, "SELECT currentDatabase()").decode().rstrip("\n") if database else ""
    try:
        if database:
            use(handle, database)
        apply(handle, settings)
        yield
    finally:
        for name in settings:
            _restore(handle, name, before.get(name))
        if database:
            _try_execute(handle, f"USE {quote_name(previous_database)}")


def execute(handle: Any, sql: str) -> bytes:
    """Run a statement of the endpoint's own on the handle."""
    try:
        result: bytes = handle.query(sql, "TabSeparatedRaw").bytes()
    except Exception as error:  # the engine raises RuntimeError and subclasses of Exception alike
        raise from_engine(error) from error
    return result


def _changed_settings(handle: Any, names: Mapping[str, str]) -> dict[str, str]:
    """Values of those settings that the session itself has changed; the others go back to their default."""
    listed = ", ".join(quote(name) for name in names)
    rows = execute(
        handle,
        f"SELECT name, value FROM system.settings WHERE changed AND name IN ({listed}) FORMAT JSONEachRow",
    )
    parsed = (json.loads(line) for line in rows.splitlines())
    return {row["name"]: row["value"] for row in parsed}


def _restore(handle: Any, name: str, value: str | None) -> None:
    if _NAME.match(name):
        _try_execute(handle, f"SET {name} = {quote(value) if value is not None else 'DEFAULT'}")


def _try_execute(handle: Any, sql: str) -> None:
    """Restore it if possible: a session that made itself read-only refuses, and an unknown setting was never set."""
    try:
        handle.query(sql, "Null")
    except Exception as error:
        logger.debug("not restored sql=%s error=%s", sql, error)
