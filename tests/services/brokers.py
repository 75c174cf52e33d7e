"""Brokers of a test's own: with other settings than the one that all tests share, or to be stopped and started."""

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rollbus.local.kafka.service import kafka_service
from rollbus.local.process.ports import find_free_port
from rollbus.local.process.service import ServiceProcess
from rollbus.local.process.tether import tethered


def own_broker(
    folder: Path, changes: Mapping[str, str] | None = None, ports: tuple[int, int] | None = None
) -> ServiceProcess:
    """Return a broker with its data in a folder, not started, on free ports unless the clients' and its own are given.

    One with changed settings may refuse a client without a password, so its own word that it has started is enough.
    """
    client, controller = ports or (find_free_port(), find_free_port())
    service = kafka_service(folder=folder, client_port=client, controller_port=controller, changes=changes)
    log = folder / "service.log"
    if changes is not None:
        service = dataclasses.replace(service, is_healthy=lambda: "Kafka Server started" in log.read_text())
    return ServiceProcess(service, log_path=log, prefix=tethered())


@contextmanager
def running_broker(broker: ServiceProcess) -> Iterator[str]:
    """Start a broker; yield its address, and stop it when the block ends."""
    try:
        broker.start()
        broker.wait_until_healthy()
        yield broker.service.address
    finally:
        broker.stop()
