"""A broker that notices dead workers soon, and workers that can be told where to die."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from rollbus.local.kafka import kafka_service
from rollbus.local.ports import free_port
from rollbus.local.service import ServiceProcess
from rollbus.local.tether import tethered
from rollbus.streams.settings import StreamSettings
from rollbus.streams.topics_kafka import ensure_topics
from tests.faults.episodes import Traffic, pipeline
from tests.services.conftest import namespace
from tests.services.stream_fixtures import stream_settings
from tests.services.stream_process import WorkerProcess

__all__ = ["namespace"]

SESSION_S = 3.0
SOON = {
    "group.min.session.timeout.ms": "2000",
    "log.retention.check.interval.ms": "1000",
    "log.initial.task.delay.ms": "500",
}
"""The broker notices dead workers, and what retention may delete, sooner than by default."""
SCRIPT = Path(__file__).with_name("worker.py")
NewWorker = Callable[..., WorkerProcess]


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap servers of a broker that the tests share."""
    folder = tmp_path_factory.mktemp("kafka")
    service = kafka_service(folder=folder, client_port=free_port(), controller_port=free_port(), changes=SOON)
    broker = ServiceProcess(service, log_path=folder / "service.log", prefix=tethered())
    try:
        broker.start()
        broker.wait_until_healthy()
        yield service.address
    finally:
        broker.stop()


@pytest.fixture
async def settings(kafka: str, namespace: str) -> StreamSettings:
    """A namespace with its topics."""
    made = stream_settings(kafka, namespace, session_timeout_s=SESSION_S, event_partitions=3)
    await ensure_topics(made, pipeline())
    return made


@pytest.fixture
def traffic(settings: StreamSettings) -> Traffic:
    """Episodes for the namespace."""
    return Traffic(settings)


@pytest.fixture
async def workers(tmp_path: Path) -> AsyncIterator[NewWorker]:
    """Makes worker processes, which end with the test; takes settings and where to die."""
    async with AsyncExitStack() as stack:
        made = 0

        def make(settings: StreamSettings, **changes: Any) -> WorkerProcess:
            nonlocal made
            made += 1
            shared = ("session_timeout_s", "event_partitions", "replication_factor")
            changes = {name: getattr(settings, name) for name in shared} | changes
            worker = WorkerProcess(settings, tmp_path / f"worker-{made}.log", script=SCRIPT, **changes)
            stack.push_async_callback(worker.kill)
            return worker

        yield make
