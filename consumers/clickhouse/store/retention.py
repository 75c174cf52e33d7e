"""How long ClickHouse keeps what episodes said → a TTL on each of their tables.

A row's age is that of its record in the log (`kafka_timestamp`, the broker's clock), so a producer with a wrong clock
deletes nothing. Tables of groups, steps, versions and drops have no TTL: they hold ids, and explain a step for ever.
An administrator's own TTL stays as long as the settings name none for its table.
"""

import logging
import re

from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.cluster import SUFFIX, stored_table
from rollbus.consumers.clickhouse.store.settings import TableRetention

logger = logging.getLogger(__name__)

TABLES = {
    "tokens_days": ("turn_tokens", "histories"),
    "texts_days": ("turns", "tool_calls", "dead_letters"),
    "episodes_days": (
        *("events", "episodes", "episode_ends", "rewards", "trajectories"),
        *("trajectory_turns", "trajectory_rewards", "reward_revisions", "scores", "turn_rewards"),
    ),
}
"""By setting. Those of `episodes_days` expire together: questions on fates count over all of them."""
MARGIN_DAYS = 1
"""Rows this close to their end may be in one of two tables that should be equal, and not in the other."""

_DATE = "toDateTime(kafka_timestamp)"
_OUR_TTL = re.compile(rf"{re.escape(_DATE)} \+ toIntervalDay\((\d+)\)( WHERE kind != 'Excluded')?")
_TTL = re.compile(r" TTL (.*?)(?: SETTINGS |\Z)", re.DOTALL)


def days_by_table(retention: TableRetention) -> dict[str, int]:
    """Return after how many days the rows of each table are deleted; a table that is not in it is kept for ever."""
    days = {"episodes_days": retention.episodes_days}
    days["texts_days"] = retention.texts_days or days["episodes_days"]
    days["tokens_days"] = retention.tokens_days or days["texts_days"]
    return {table: day_count for name, day_count in days.items() if day_count is not None for table in TABLES[name]}


def apply_retention(client: ClickHouse) -> list[str]:
    """Give the tables the TTLs of the settings, and return the tables that changed; ClickHouse deletes by itself."""
    days, changed_tables = days_by_table(client.retention), []
    suffix = SUFFIX if client.cluster else ""
    _, rows = client.query("SELECT name, engine_full FROM system.tables WHERE database = currentDatabase()")
    engines = {str(name): str(engine) for name, engine in rows}
    for table in (table for tables in TABLES.values() for table in tables):
        match = _TTL.search(engines.get(table + suffix, ""))
        present_ttl = match[1] if match else None
        ttl = _ttl_expression(table, days[table]) if table in days else None
        is_foreign = not _OUR_TTL.fullmatch(present_ttl or "")
        if table + suffix not in engines or present_ttl == ttl or (ttl is None and is_foreign):
            continue
        target = stored_table(table, client.cluster)
        client.command(f"ALTER TABLE {target} " + (f"MODIFY TTL {ttl}" if ttl else "REMOVE TTL"))
        logger.info("retention table=%s days=%s", table, days.get(table, "all"))
        changed_tables.append(table)
    return changed_tables


def alive_condition(table: str, retention: TableRetention) -> str:
    """Return the SQL condition of the rows of a table that are not deleted within `MARGIN_DAYS`."""
    days = days_by_table(retention).get(table)
    return "true" if days is None else f"kafka_timestamp > now() - toIntervalDay({days}) + toIntervalDay({MARGIN_DAYS})"


def _ttl_expression(table: str, days: int) -> str:
    """Return a TTL as `system.tables` shows it.

    Exclusions stay in `events`: a rebuild finds there which episodes were forgotten.
    """
    return f"{_DATE} + toIntervalDay({days})" + (" WHERE kind != 'Excluded'" if table == "events" else "")
