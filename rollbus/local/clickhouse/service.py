"""The ClickHouse endpoint as a service: data folder and port → a process that answers `/ping` on loopback."""

import sys
from pathlib import Path

from rollbus.local.process.service import Service, answers_http
from rollbus.runtime.credentials import make_secrets
from rollbus.stack_settings import HOST


def clickhouse_service(*, folder: Path, port: int, secrets: Path | None = None) -> Service:
    """The endpoint with its data in `folder` and its passwords in `secrets`, made if missing; None for no passwords."""
    command = [
        sys.executable,
        "-m",
        "rollbus.local.clickhouse.endpoint",
        "--port",
        str(port),
        "--data",
        str(folder.resolve()),
        *(["--insecure"] if secrets is None else ["--secrets", str(secrets.resolve())]),
    ]

    def prepare() -> list[str]:
        if secrets is not None:
            make_secrets(secrets)
        return command

    return Service(
        name="clickhouse",
        command=prepare,
        is_healthy=lambda: is_healthy(port),
        address=f"http://{HOST}:{port}",
        ports={"clickhouse_port": port},
    )


def is_healthy(port: int) -> bool:
    """Whether the engine answers a statement."""
    return answers_http(port, "/ping", body=b"Ok.\n")
