"""What the benchmarks share: a figure with its target, variants in processes of their own, and services."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rollbus.local.kafka.service import kafka_service
from rollbus.local.process.ports import find_free_port
from rollbus.local.process.service import Service, ServiceProcess
from rollbus.local.process.tether import tethered

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A measurement with its target, as one line."""

    what: str
    figures: str
    met: bool | None = None
    """None where nothing is promised."""

    def __str__(self) -> str:
        mark = {True: "met", False: "NOT MET", None: "reported"}[self.met]
        return f"{self.what:45} {mark:9} {self.figures}"


def reported(what: str, figures: str) -> Verdict:
    return Verdict(what, figures)


def at_least(what: str, value: float, target: float, figures: str) -> Verdict:
    return Verdict(what, f"{value:.2f}, target ≥ {target:g}; {figures}", value >= target)


def at_most(what: str, value: float, target: float, figures: str) -> Verdict:
    return Verdict(what, f"{value:.4g}, target ≤ {target:g}; {figures}", value <= target)


def run_module(python: str, module: str, *arguments: str, threads: int = 1) -> dict[str, Any]:
    """Run a module of this project in a process of its own; return the JSON of its last line, {} if it prints none."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": str(threads)}
    command = [python, "-m", module, *arguments]
    process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}:\n{process.stderr[-2000:]}")
    *_, last = "{}", *process.stdout.splitlines()
    return dict(json.loads(last))


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process and of those that it has started."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children = [child for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") + sum(cpu_seconds(int(child)) for child in children)


@contextmanager
def running(folder: Path, services: Sequence[Service]) -> Iterator[None]:
    """Start services, and stop them at the end of the block; their logs are in `folder`."""
    processes = [
        ServiceProcess(service, log_path=folder / f"{service.name}.log", prefix=tethered()) for service in services
    ]
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.wait_until_healthy()
        yield
    finally:
        for process in processes:
            process.stop()


class Broker(NamedTuple):
    """Where it answers, and where its log files lie."""

    bootstrap_servers: str
    data: Path


@contextmanager
def broker() -> Iterator[Broker]:
    """Run a broker in a temporary folder for as long as the block lasts."""
    with tempfile.TemporaryDirectory() as name:
        service = kafka_service(folder=Path(name), client_port=find_free_port())
        with running(Path(name), [service]):
            yield Broker(service.address, Path(name, "data"))
