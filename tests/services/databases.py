"""The databases of tests at the service that all of them share: each goes with the module that made it.

A database takes a quarter of a percent of a core while nothing happens, and a whole run makes a hundred.
"""

import uuid
from contextlib import closing, suppress

from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from rollbus.schemas.errors import UnavailableError

NEW_DATABASES: list[ClickHouseSettings] = []


def name_database(clickhouse: tuple[str, int], prefix: str) -> ClickHouseSettings:
    """Return how a database of a new name is reached, which `drop_databases` drops if it was made."""
    host, port = clickhouse
    NEW_DATABASES.append(
        settings := ClickHouseSettings(host=host, port=port, database=f"{prefix}_{uuid.uuid4().hex[:8]}")
    )
    return settings


def drop_databases() -> None:
    """Drop what this process named since the last call."""
    while NEW_DATABASES:
        settings = NEW_DATABASES.pop()
        client = ClickHouse(settings, database="default")
        with closing(client), suppress(UnavailableError):  # a server of its own went with its module
            client.command(f"DROP DATABASE IF EXISTS {settings.database}")
