"""A broker of the benchmark's own, in a temporary folder, for as long as the block lasts."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from rollbus.local.kafka.service import kafka_service
from rollbus.local.process.ports import find_free_port
from rollbus.local.process.service import ServiceProcess
from rollbus.local.process.tether import tethered


class Broker(NamedTuple):
    """Where it answers, where its log files lie, and which process it is."""

    bootstrap_servers: str
    data: Path
    pid: int

    def cpu_seconds(self) -> float:
        """Return the processor time that it has used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def broker(heap: str = "", changes: Mapping[str, str] | None = None) -> Iterator[Broker]:
    """Start a broker, and stop it and remove its data in the end; `heap` is its memory where 400 MB are too little.

    `changes` to its settings win over those of a local stack.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        service = kafka_service(folder=folder, client_port=find_free_port(), changes=changes)
        if heap:  # the JVM takes this variable after the options of its command line
            service = replace(service, env={**os.environ, "_JAVA_OPTIONS": f"-Xmx{heap}"})
        process = ServiceProcess(service, log_path=folder / "kafka.log", prefix=tethered())
        try:
            process.start()
            process.wait_until_healthy()
            assert process.identity is not None
            yield Broker(service.address, folder / "data", process.identity.pid)
        finally:
            process.stop()
