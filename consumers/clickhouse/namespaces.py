"""A replay's namespace → its rows out of every table: its topics are gone, or were written anew under the same name."""

from rollbus.consumers.clickhouse.client_clickhouse import ClickHouse
from rollbus.consumers.clickhouse.forget import delete_where
from rollbus.consumers.clickhouse.settings import ClickHouseSettings
from rollbus.schemas.errors import ConfigurationError

REPLAYED = "replay-"
"""What the namespaces of replays begin with; no other's rows are deleted here."""
_TABLES = (
    "SELECT name FROM system.tables WHERE database = {database:String} AND engine LIKE '%MergeTree' AND name IN "
    "(SELECT table FROM system.columns WHERE database = {database:String} AND name = 'namespace') ORDER BY name"
)


def delete_namespace(settings: ClickHouseSettings, namespace: str) -> int:
    """Delete every row of a replay's namespace, and return how many there were; raises ServiceError."""
    if not namespace.startswith(REPLAYED):
        raise ConfigurationError(f"{namespace} is no namespace of a replay; its rows stay")
    client = ClickHouse(settings, database="default")
    chosen = {"database": settings.database}
    try:
        tables = [f"{settings.database}.{table}" for (table,) in client.query(_TABLES, chosen)[1]]
        return sum(delete_where(client, table, f"namespace = '{namespace}'") for table in tables)
    finally:
        client.close()
