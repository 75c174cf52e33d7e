"""Real services, each started once for all worker processes of a run, on free ports, data in temporary folders.

A room for each part that a real service is asked about: `kafka` (clients, permissions, lag), `producers`, `streams`,
`replay`, `delivery`, `trainer` and `art`, `clickhouse` and its local `endpoint`, `consumers`, `archive`; `stack` holds
what a user starts whole.
"""

import asyncio
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from rollbus.local.clickhouse.service import clickhouse_service
from rollbus.local.kafka.service import kafka_service
from rollbus.local.process.ports import find_free_port
from rollbus.local.process.service import Service
from rollbus.runtime.kafka.clients import new_admin, running
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.errors import UnavailableError
from rollbus.stack_settings import HOST
from tests.services.art.fixtures import art_base_model, art_launcher, art_server, own_art_server
from tests.services.databases import drop_databases
from tests.services.shared_service import shared_service

__all__ = ["art_base_model", "art_launcher", "art_server", "own_art_server"]


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap servers of a broker that all tests share; keep apart by `namespace`."""

    def make(folder: Path) -> tuple[Service, str]:
        service = kafka_service(folder=folder, client_port=find_free_port())
        return service, service.address

    with shared_service(tmp_path_factory, "kafka", make) as address:
        yield address


@pytest.fixture(scope="session")
def clickhouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """Host and port of a ClickHouse endpoint that all tests share; keep apart by a database or `namespace`."""

    def make(folder: Path) -> tuple[Service, str]:
        port = find_free_port()
        return clickhouse_service(folder=folder / "data", port=port), str(port)

    with shared_service(tmp_path_factory, "clickhouse", make) as port:
        yield HOST, int(port)


@pytest.fixture(scope="module", autouse=True)
def databases_go_with_their_module() -> Iterator[None]:
    """Leave none to the service, which the tests that follow share."""
    yield
    drop_databases()


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> Iterator[str]:
    """A prefix for topics, groups and transactional ids that no other test uses, such as 't-4f1c9a.'.

    Its topics go with the test: a broker and its clients pay for every partition that there is.
    """
    prefix = f"t-{uuid.uuid4().hex[:6]}."
    kafka = request.getfixturevalue("kafka") if "kafka" in request.fixturenames else None
    yield prefix
    if kafka is not None:
        with ThreadPoolExecutor(1) as thread:  # a test's own loop is not to notice
            thread.submit(lambda: asyncio.run(remove_topics(KafkaConnection(bootstrap_servers=kafka), prefix))).result()


async def remove_topics(connection: KafkaConnection, prefix: str) -> None:
    """Delete the topics whose names begin so, unless the test has ended the broker."""
    with suppress(UnavailableError):
        async with running(connection, new_admin(connection)) as admin:
            if names := [name for name in await admin.list_topics() if name.startswith(prefix)]:
                await admin.delete_topics(names)
