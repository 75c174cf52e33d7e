"""A broker that notices dead workers soon, and workers that can be told where to die."""

import random
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from rollbus.local.kafka.service import kafka_service
from rollbus.local.process.ports import find_free_port
from rollbus.local.process.service import Service
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics_on_broker import ensure_topics
from tests.faults.episodes import Traffic, pipeline
from tests.faults.log_contents import LogContents
from tests.faults.seed import REPEAT, SEED
from tests.services.conftest import clickhouse, namespace
from tests.services.shared_service import shared_service
from tests.services.streams.fixtures import stream_settings
from tests.services.streams.process import WorkerProcess

__all__ = ["clickhouse", "namespace"]

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

    def make(folder: Path) -> tuple[Service, str]:
        service = kafka_service(folder=folder, client_port=find_free_port(), changes=SOON)
        return service, service.address

    with shared_service(tmp_path_factory, "soon-kafka", make) as address:
        yield address


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """Chance of the test's own, by the run's seed and the test's name; a failure shows how to repeat it."""
    print(REPEAT)
    return random.Random(f"{SEED} {request.node.name}")


@pytest.fixture
async def settings(kafka: str, namespace: str) -> StreamSettings:
    """A namespace with its topics, on as many brokers as there are."""
    replicas = kafka.count(",") + 1
    test_settings = stream_settings(
        kafka, namespace, session_timeout_s=SESSION_S, event_partitions=3, replication_factor=replicas
    )
    await ensure_topics(test_settings, pipeline())
    return test_settings


@pytest.fixture
def traffic(settings: StreamSettings) -> Traffic:
    """Episodes for the namespace."""
    return Traffic(settings)


@pytest.fixture
async def workers(tmp_path: Path) -> AsyncIterator[NewWorker]:
    """Makes worker processes, which end with the test; takes settings and where to die."""
    async with AsyncExitStack() as stack:
        worker_count = 0

        def make(settings: StreamSettings, **changes: Any) -> WorkerProcess:
            nonlocal worker_count
            worker_count += 1
            shared = ("session_timeout_s", "event_partitions", "replication_factor")
            changes = {name: getattr(settings, name) for name in shared} | changes
            worker = WorkerProcess(settings, tmp_path / f"worker-{worker_count}.log", script=SCRIPT, **changes)
            stack.push_async_callback(worker.kill)
            return worker

        yield make


async def open_worker(workers: NewWorker, settings: StreamSettings, **changes: Any) -> WorkerProcess:
    """Start a worker and wait until it works on a partition."""
    worker = workers(settings, **changes)
    await worker.start()
    await worker.until_open()
    return worker


async def finish(worker: WorkerProcess, traffic: Traffic) -> LogContents:
    """Wait until all is trained, end the worker, which has to end cleanly, and check the log."""
    await traffic.until_trained()
    worker.send(signal.SIGTERM)
    assert await worker.ended() == 0, worker.log()
    return await traffic.check()
