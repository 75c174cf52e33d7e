"""Alternate reading, replays and the live worker over the same topic on a broker of their own; print rates and ratios.

python -m benchmarks.replay.run [episodes] [rounds] [processes]

The targets: a replay reaches half the rate of reading and decoding alone, and twice the live worker's. Reading and the
live worker are one process each; a replay is one, or as many that assemble as there are cores and one that puts in
order. What starting takes is left out everywhere; rates are by the wall, and beside them stands the CPU time of all
processes together, which other load on the machine changes less. Of several processes the one that puts in order bounds
how far more cores help: its own CPU time is told apart.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.streams.broker import broker
from benchmarks.streams.events import EVENTS
from rollbus.streams.replay.processes import cores

ROOT = Path(__file__).parents[2]
READ, LIVE = "read and decode", "live assembly"
Seen = dict[str, dict[str, float]]


def variants(processes: int) -> dict[str, tuple[str, ...]]:
    """Return the module and arguments of each variant, in the order in which they take turns."""
    replay = "benchmarks.replay.replayed"
    return {
        READ: ("benchmarks.replay.read_only",),
        "assembly": (replay, "assembly", "written", "1"),
        f"assembly, {processes}": (replay, "assembly", "written", str(processes)),
        "all": (replay, "all", "written", "1"),
        f"all, {processes}": (replay, "all", "written", str(processes)),
        "all, dry": (replay, "all", "dry", "1"),
        f"all, dry, {processes}": (replay, "all", "dry", str(processes)),
        LIVE: ("benchmarks.streams.ours",),
    }


def measure(bootstrap_servers: str, namespace: str, records: int, module: str, *more: str) -> dict[str, float]:
    """Run one variant in a process of its own; return what it printed last."""
    arguments = [bootstrap_servers, namespace, *(more or ((str(records),) if module.endswith("ours") else ()))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return {"records": records, **json.loads(done.stdout.splitlines()[-1])}


def one_round(bootstrap_servers: str, episodes: int, processes: int) -> Seen:
    """Fill a topic, let each variant work on it once, and print what each took."""
    namespace = f"bench-{time.time_ns()}."
    load = [sys.executable, "-m", "benchmarks.replay.load", bootstrap_servers, namespace, str(episodes)]
    done = subprocess.run(load, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    records, size = map(int, done.stdout.split())
    print(f"{records} records, {size / 1e6:.0f} MB, {episodes * EVENTS} of them events")
    found = {}
    for name, variant in variants(processes).items():
        result = found[name] = measure(bootstrap_servers, namespace, records, *variant)
        rate, cpu = result["records"] / result["seconds"], result["cpu_seconds"] / result["records"] * 1e6
        print(f"  {name:16} {rate:8.0f} records/s {cpu:6.1f} CPU µs/record {result['resident_mb']:5.0f} MB"
              + (f" + {result['lane_mb']:.0f} MB each" if result.get("lane_mb") else ""), flush=True)  # fmt: skip
        if result.get("lane_mb"):
            print(f"  {'':16} {result['own_cpu_seconds'] / result['records'] * 1e6:26.1f} of them to put in order")
    return found


def main(episodes: int, rounds: int, processes: int) -> None:
    """Start a broker, alternate, print the medians of the ratios, and stop the broker."""
    with broker() as running:
        seen = [one_round(running.bootstrap_servers, episodes, processes) for _ in range(rounds)]
    for name in variants(processes):
        if name not in (READ, LIVE):
            tell(name, READ, 0.5, seen)
    for name in ("assembly", f"assembly, {processes}"):
        tell(name, LIVE, 2.0, seen)


def tell(name: str, other: str, target: float, seen: list[Seen]) -> None:
    """Print how a variant compares with another, by the wall and by CPU time."""
    rates = [found[other]["seconds"] / found[name]["seconds"] for found in seen]
    by_cpu = statistics.median(found[other]["cpu_seconds"] / found[name]["cpu_seconds"] for found in seen)
    spread = f"{min(rates):.2f} to {max(rates):.2f}"
    print(f"{name} / {other}: {statistics.median(rates):.2f} ({spread}), by CPU {by_cpu:.2f}; target {target}")
    if all(found[name].get("lane_mb") for found in seen):
        alone = statistics.median(found[other]["cpu_seconds"] / found[name]["own_cpu_seconds"] for found in seen)
        print(f"  with more cores and processes at most {alone:.2f}, when the one that puts in order is always busy")


if __name__ == "__main__":
    chosen = [int(each) for each in sys.argv[1:]]
    main(*chosen, *(8_000, 3, max(2, cores()))[len(chosen) :])
