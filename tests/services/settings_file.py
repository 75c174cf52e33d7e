"""The file of settings that a command of a test is given."""

from pathlib import Path

import yaml


def write_settings(folder: Path, kafka: str, clickhouse: tuple[str, int], database: str) -> None:
    """Write `rollbus.yaml`: where the services are, and a sink that writes at once."""
    host, port = clickhouse
    services = {
        "kafka": {"bootstrap_servers": kafka},
        "clickhouse": {"host": host, "port": port, "database": database},
        "sink": {"linger_ms": 100},
    }
    (folder / "rollbus.yaml").write_text(yaml.safe_dump(services))
