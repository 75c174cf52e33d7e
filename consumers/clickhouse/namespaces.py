"""A replay's namespace → its rows out of every table: its topics are gone, or were written anew under the same name."""

from rollbus.consumers.clickhouse.client_clickhouse import ClickHouse
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
    deleted = 0
    try:
        for (table,) in client.query(_TABLES, chosen)[1]:
            place = f"{settings.database}.{table}"
            condition = f"namespace = '{namespace}'"
            _, ((count,),) = client.query(f"SELECT count() FROM {place} WHERE {condition}")
            if count:
                client.command(f"ALTER TABLE {place} DELETE WHERE {condition} SETTINGS mutations_sync = 2")
                deleted += int(count)
    finally:
        client.close()
    return deleted
