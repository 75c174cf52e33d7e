"""The file of settings that a command of a test is given which also writes into ClickHouse."""

from pathlib import Path

from rollbus.schemas.namespaces import DEFAULT_NAMESPACE
from tests.services.commands import write_config


def write_settings(folder: Path, kafka: str, clickhouse: tuple[str, int], database: str) -> None:
    """Write `rollbus.yaml`: where the services are, and a sink that writes at once."""
    host, port = clickhouse
    where = {"host": host, "port": port, "database": database}
    write_config(folder, kafka, DEFAULT_NAMESPACE, clickhouse=where, sink={"linger_ms": 100})
