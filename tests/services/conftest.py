"""Real services for the tests of a whole session: started once, on free ports, data in temporary folders."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from rollbus.local.clickhouse import clickhouse_service
from rollbus.local.kafka import kafka_service
from rollbus.local.ports import free_port
from rollbus.local.service import Service, ServiceProcess
from rollbus.local.settings import HOST
from rollbus.local.tether import tethered
from tests.services.art_fixtures import art_base_model, art_launcher, art_server, own_art_server

__all__ = ["art_base_model", "art_launcher", "art_server", "own_art_server"]

Address = TypeVar("Address")


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap servers of a broker that all tests share; keep apart by `namespace`."""
    folder = tmp_path_factory.mktemp("kafka")
    service = kafka_service(folder=folder, client_port=free_port(), controller_port=free_port())
    yield from _run(service, folder, service.address)


@pytest.fixture(scope="session")
def clickhouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """Host and port of a ClickHouse endpoint that all tests share; keep apart by a database or `namespace`."""
    folder = tmp_path_factory.mktemp("clickhouse")
    port = free_port()
    yield from _run(clickhouse_service(folder=folder / "data", port=port), folder, (HOST, port))


@pytest.fixture
def namespace() -> str:
    """A prefix for topics, groups and transactional ids that no other test uses, such as 't-4f1c9a.'."""
    return f"t-{uuid.uuid4().hex[:6]}."


def _run(service: Service, folder: Path, address: Address) -> Iterator[Address]:
    """The service while the tests run; it ends even if they are killed."""
    process = ServiceProcess(service, log_path=folder / "service.log", prefix=tethered())
    try:
        process.start()
        process.wait_until_healthy()
        yield address
    finally:
        process.stop()
