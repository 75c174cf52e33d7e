"""A broker of the benchmark's own, in a temporary folder, for as long as the block lasts."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rollbus.local.kafka import kafka_service
from rollbus.local.ports import free_port
from rollbus.local.service import ServiceProcess
from rollbus.local.tether import tethered


class Broker(NamedTuple):
    """Where it answers, and where its log files lie."""

    bootstrap_servers: str
    data: Path


@contextmanager
def broker() -> Iterator[Broker]:
    """Start a broker, and stop it and remove its data in the end."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        service = kafka_service(folder=folder, client_port=free_port(), controller_port=free_port())
        process = ServiceProcess(service, log_path=folder / "kafka.log", prefix=tethered())
        try:
            process.start()
            process.wait_until_healthy()
            yield Broker(service.address, folder / "data")
        finally:
            process.stop()
