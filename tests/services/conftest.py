"""Real services for the tests of a whole session: started once, on free ports, with their data in temporary folders."""

import uuid
from collections.abc import Iterator

import pytest

from rollbus.local.kafka import KafkaBroker
from rollbus.local.ports import free_port


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap servers of a broker that all tests share; keep apart by `namespace`."""
    broker = KafkaBroker(
        folder=tmp_path_factory.mktemp("kafka"), client_port=free_port(), controller_port=free_port()
    )
    try:
        broker.start()
        broker.wait_until_healthy()
        yield broker.bootstrap_servers
    finally:
        broker.stop()


@pytest.fixture
def namespace() -> str:
    """A prefix for topics, groups and transactional ids that no other test uses, such as 't-4f1c9a.'."""
    return f"t-{uuid.uuid4().hex[:6]}."
