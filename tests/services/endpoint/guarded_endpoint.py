"""An endpoint of its own whose two users have passwords."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import clickhouse_connect
import pytest
from clickhouse_connect.driver.client import Client

from rollbus.local.clickhouse.service import clickhouse_service
from rollbus.local.process.ports import find_free_port
from rollbus.local.process.service import ServiceProcess
from rollbus.local.process.tether import tethered
from rollbus.runtime.credentials import PASSWORD, READONLY_PASSWORD
from rollbus.stack_settings import HOST


@dataclass(frozen=True, slots=True)
class Guarded:
    port: int
    folder: Path
    """Beside the endpoint's data: nothing of its users' may appear here."""
    password: str = "owner's secret"
    reader_password: str = "reader's secret"
    send_s: float = 60.0
    """In which the reader must have taken a long answer."""

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/"

    def client(self, user: str = "default", password: str | None = None, **options: Any) -> Client:
        password_by_user = {"default": self.password, "readonly": self.reader_password}
        return clickhouse_connect.get_client(
            host=HOST,
            port=self.port,
            username=user,
            password=password_by_user[user] if password is None else password,
            **options,
        )


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with running_endpoint(Guarded(find_free_port(), tmp_path_factory.mktemp("guarded"))) as endpoint:
        with endpoint.client() as owner:
            owner.command("CREATE TABLE numbers (id UInt32, name String) ENGINE = MergeTree ORDER BY id")
            owner.command("INSERT INTO numbers SELECT number, toString(number) FROM numbers(1000)")
        yield endpoint


def write_passwords(folder: Path, owner: str, reader: str) -> Path:
    """Write the passwords of the two users, as `rollbus up` does; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PASSWORD).write_text(owner)
    (folder / READONLY_PASSWORD).write_text(reader)
    return folder


@contextmanager
def running_endpoint(endpoint: Guarded) -> Iterator[Guarded]:
    """The endpoint while it runs."""
    secrets = write_passwords(endpoint.folder.with_name("secrets"), endpoint.password, endpoint.reader_password)
    service = clickhouse_service(folder=endpoint.folder / "data", port=endpoint.port, secrets=secrets)
    command = [*service.command(), "--send-s", str(endpoint.send_s)]
    process = ServiceProcess(
        replace(service, command=lambda: command), log_path=endpoint.folder / "log", prefix=tethered()
    )
    try:
        process.start()
        process.wait_until_healthy()
        yield endpoint
    finally:
        process.stop()
