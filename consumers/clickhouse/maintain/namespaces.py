"""A replay's namespace → its rows deleted from every table: its topics are gone, or were written again."""

from contextlib import closing

from rollbus.consumers.clickhouse.maintain.forget import delete_where
from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.cluster import SUFFIX
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from rollbus.schemas.errors import ConfigurationError

REPLAYED = "replay-"
"""How the namespaces of replays begin; the rows of other namespaces stay."""
_TABLES = (
    "SELECT name FROM system.tables WHERE database = {database:String} AND (engine = 'Distributed' OR "
    f"engine LIKE '%MergeTree' AND NOT endsWith(name, '{SUFFIX}')) AND name IN "
    "(SELECT table FROM system.columns WHERE database = {database:String} AND name = 'namespace') ORDER BY name"
)


def delete_namespace(settings: ClickHouseSettings, namespace: str) -> int:
    """Delete every row of a replay's namespace, and return how many there were; raises ServiceError."""
    if not namespace.startswith(REPLAYED):
        raise ConfigurationError(f"{namespace} is not the namespace of a replay; its rows stay")
    with closing(ClickHouse(settings, database="default")) as client:
        _, tables = client.query(_TABLES, {"database": settings.database})
        return sum(
            delete_where(client, f"{settings.database}.{table}", f"namespace = '{namespace}'") for (table,) in tables
        )
