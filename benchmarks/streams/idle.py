"""What a stack takes while nothing comes, in percent of a core: the default settings, each process as users start it.

python -m benchmarks.streams.idle [seconds of each measurement]

Kafka and ClickHouse are measured alone first, then with a worker and a sink: what these make them take is the
difference. All are started by the installed `rollbus`, with their heartbeats.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.common import at_most, cpu_seconds
from rollbus.local.process import state
from rollbus.local.process.ports import find_free_port
from rollbus.stack_settings import StackSettings

ROLLBUS = str(Path(sys.prefix) / "bin" / "rollbus")
PORTS = ("kafka_port", "clickhouse_port", "art_port", "model_port")
SETTLE_S = 60.0
"""The first ticks come more often."""
LOOK_S, STARTED_PERCENT = 10.0, 10.0
"""A process has started once it takes less of a core for so long."""
SECONDS = 60.0
TARGETS = {"worker": 1.0, "sink": 0.3, "kafka": 2.0, "clickhouse": 0.5}
"""Percent of a core at most; of Kafka and ClickHouse, what worker and sink make them take."""


def percents(pids: Mapping[str, int], seconds: float) -> dict[str, float]:
    """Return what each process takes of a core meanwhile, in percent."""
    for pid in pids.values():
        while _percent(pid, LOOK_S) > STARTED_PERCENT:
            pass
    time.sleep(SETTLE_S)
    before, began = {name: cpu_seconds(pid) for name, pid in pids.items()}, time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - began
    return {name: (cpu_seconds(pid) - before[name]) / passed * 100 for name, pid in pids.items()}


def _percent(pid: int, seconds: float) -> float:
    before = cpu_seconds(pid)
    time.sleep(seconds)
    return (cpu_seconds(pid) - before) / seconds * 100


@contextmanager
def stack(folder: Path) -> Iterator[dict[str, int]]:
    """Run Kafka and ClickHouse with the default settings; yield their process ids."""
    ports = ", ".join(f"{name}: {find_free_port()}" for name in PORTS)
    (folder / "rollbus.yaml").write_text(f"stack: {{{ports}}}\n")
    run(folder, "up", "--no-art")
    try:
        run(folder, "topics", "create")
        services = state.read_all(StackSettings(data_dir=folder / ".rollbus").run_dir)
        yield {service.name: service.identity.pid for service in services}
    finally:
        run(folder, "down")


def run(folder: Path, *arguments: str) -> None:
    """Give a command, and wait for its end."""
    subprocess.run([ROLLBUS, *arguments], cwd=folder, check=True, stdout=subprocess.DEVNULL)


@contextmanager
def service(folder: Path, *arguments: str) -> Iterator[int]:
    """Run a process of the stack for as long as the block lasts; yield its process id."""
    with (folder / f"{arguments[0]}.log").open("w") as log:
        process = subprocess.Popen([ROLLBUS, *arguments], cwd=folder, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield process.pid
        finally:
            process.terminate()
            process.wait()


def main(seconds: float) -> None:
    """Measure, and print the figures with their targets."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as running:
        folder = Path(name)
        pids = running.enter_context(stack(folder))
        alone = percents(pids, seconds)
        for process in ("worker", "sink"):
            pids[process] = running.enter_context(service(folder, process, "run"))
        together = percents(pids, seconds)
    for name in alone:
        print(f"{name} alone: {alone[name]:.2f} % of a core")
        together[name] -= alone[name]
    for name, target in TARGETS.items():
        print(at_most(f"{name}, % of a core", together[name], target, f"over {seconds:.0f} s"))


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS)
