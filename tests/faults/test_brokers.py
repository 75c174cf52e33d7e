"""Brokers that die, one alone or one of three: the workers wait or go on, and every record is as it must be."""

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollbus.local.kafka.service import kafka_service, new_cluster_id
from rollbus.local.process.ports import find_free_port
from rollbus.local.process.service import ServiceProcess
from rollbus.local.process.tether import tethered
from rollbus.stack_settings import HOST
from rollbus.streams.kafka.settings import StreamSettings
from tests.faults.conftest import SOON, NewWorker, finish, open_worker
from tests.faults.episodes import Traffic

pytestmark = [pytest.mark.services, pytest.mark.faults]

THREE = {
    **SOON,
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "1000",
}


def nodes(folder: Path, count: int) -> list[ServiceProcess]:
    """Brokers that are each other's controllers; not started."""
    ports = [(find_free_port(), find_free_port()) for _ in range(count)]
    voters = ",".join(f"{number}@{HOST}:{controller}" for number, (_, controller) in enumerate(ports, 1))
    cluster_id = new_cluster_id()
    node_processes = []
    for number, (client, controller) in enumerate(ports, 1):
        place = folder / f"node-{number}"
        changes = {**(THREE if count > 1 else SOON), "node.id": str(number), "controller.quorum.voters": voters}
        service = kafka_service(
            folder=place, client_port=client, controller_port=controller, changes=changes, cluster_id=cluster_id
        )
        node_processes.append(ServiceProcess(service, log_path=place / "service.log", prefix=tethered()))
    return node_processes


def start(brokers: list[ServiceProcess]) -> None:
    """Start them, again if they were killed, and wait until each answers."""
    for broker in brokers:
        while broker.is_running():
            time.sleep(0.1)
        broker.start()
    for broker in brokers:
        broker.wait_until_healthy()


def kill(broker: ServiceProcess) -> None:
    """End a broker as a power cut does."""
    assert broker.identity is not None
    os.kill(broker.identity.pid, signal.SIGKILL)


@pytest.fixture
def brokers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[ServiceProcess]]:
    """As many brokers as the test's parameter says."""
    broker_processes = nodes(tmp_path, request.param)
    try:
        start(broker_processes)
        yield broker_processes
    finally:
        for broker in broker_processes:
            broker.stop(grace_s=1.0)


@pytest.fixture
def kafka(brokers: list[ServiceProcess]) -> str:
    """Their addresses."""
    return ",".join(broker.service.address for broker in brokers)


@pytest.mark.parametrize("brokers", [1], indirect=True)
async def test_the_only_broker_is_killed_under_load_and_comes_back(
    brokers: list[ServiceProcess], settings: StreamSettings, traffic: Traffic, workers: NewWorker
) -> None:
    worker = await open_worker(workers, settings)
    feeding = asyncio.create_task(traffic.send(range(30), pause_s=0.3))
    for pause_s in (2.0, 4.0):
        await asyncio.sleep(pause_s)
        kill(brokers[0])
        await asyncio.to_thread(start, brokers)
    await feeding
    await finish(worker, traffic)


@pytest.mark.parametrize("brokers", [3], indirect=True)
async def test_one_of_three_brokers_is_killed_and_the_others_go_on(
    brokers: list[ServiceProcess],
    settings: StreamSettings,
    traffic: Traffic,
    workers: NewWorker,
    chance: random.Random,
) -> None:
    worker = await open_worker(workers, settings)
    victim = chance.choice(brokers)
    feeding = asyncio.create_task(traffic.send(range(30), pause_s=0.2))
    await asyncio.sleep(2.0)
    kill(victim)
    await feeding
    await traffic.until_trained()  # with two brokers only
    await asyncio.to_thread(start, [victim])
    await traffic.send(range(30, 40))
    await finish(worker, traffic)
