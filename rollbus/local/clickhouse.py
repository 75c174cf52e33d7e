"""The ClickHouse endpoint as a service: data folder and port → a process that answers `/ping` on loopback."""

import http.client
import sys
from pathlib import Path

from rollbus.local.service import Service
from rollbus.local.settings import HOST

PING_TIMEOUT_S = 5.0


def clickhouse_service(*, folder: Path, port: int) -> Service:
    """The endpoint with its data in `folder`."""
    command = [
        sys.executable,
        "-m",
        "rollbus.local.clickhouse_endpoint",
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
    """Whether the endpoint's engine answers a statement."""
    connection = http.client.HTTPConnection(HOST, port, timeout=PING_TIMEOUT_S)
    try:
        connection.request("GET", "/ping")
        response = connection.getresponse()
        return response.status == 200 and response.read() == b"Ok.\n"
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
