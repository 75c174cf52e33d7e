"""The ClickHouse endpoint as a service: data folder and port → a process that answers `/ping` on loopback."""

import sys
from pathlib import Path

from rollbus.local.process.service import Service, answers_http
from rollbus.local.process.settings import HOST


def clickhouse_service(*, folder: Path, port: int) -> Service:
    """The endpoint with its data in `folder`."""
    command = [
        sys.executable,
        "-m",
        "rollbus.local.clickhouse.endpoint",
        "--port",
        str(port),
        "--data",
        str(folder.resolve()),
    ]
    return Service(
        name="clickhouse",
        command=lambda: command,
        is_healthy=lambda: is_healthy(port),
        address=f"http://{HOST}:{port}",
        ports={"clickhouse_port": port},
    )


def is_healthy(port: int) -> bool:
    """Whether the engine answers a statement."""
    return answers_http(port, "/ping", body=b"Ok.\n")
