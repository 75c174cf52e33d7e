"""Alternate reading, replays and the live worker over the same records on a broker of their own; print the ratios.

python -m benchmarks.replay.run [episodes] [rounds] [processes]

The targets: a replay reaches half the rate of reading and decoding alone, and twice the live worker's on one core.
Reading is measured twice, with our compiled codec and with the Avro library that somebody outside would take; the live
worker twice, with assembly alone and with all stages of a whole replay. Whatever is one process is held to one core,
the same one for all; a replay is one process, or as many that assemble as there are cores and one that puts in order.
What starting takes is left out everywhere; rates are by the wall, and beside them stands the CPU time of all processes
together, which other load on the machine changes less. Of several processes the one that puts in order bounds how far
more cores help: its own CPU time is told apart. Runs that made different records are not compared.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.streams.broker import broker
from benchmarks.streams.events import EVENTS
from rollbus.runtime.machine import count_bound_cores

ROOT = Path(__file__).parents[2]
READ, LIBRARY = "read and decode", "read, fastavro"
LIVE, LIVE_ALL = "live assembly", "live all"
CORE = max(os.sched_getaffinity(0))
"""Of the variants that are one process; the broker takes what is left, and a part of this one where it must."""
Seen = dict[str, dict[str, Any]]


def variants(processes: int) -> dict[str, tuple[str, ...]]:
    """Return the module and arguments of each variant, in the order in which they take turns."""
    read, replay, live = (f"benchmarks.replay.{module}" for module in ("read_only", "replay_run", "live_worker"))
    return {
        READ: (read, "compiled"),
        LIBRARY: (read, "library"),
        "assembly": (replay, "assembly", "written", "1"),
        f"assembly, {processes}": (replay, "assembly", "written", str(processes)),
        "all": (replay, "all", "written", "1"),
        f"all, {processes}": (replay, "all", "written", str(processes)),
        "all, dry": (replay, "all", "dry", "1"),
        f"all, dry, {processes}": (replay, "all", "dry", str(processes)),
        LIVE_ALL: (live, "all"),
        LIVE: (live, "assembly"),
    }


def measure(bootstrap_servers: str, namespace: str, records: int, module: str, *more: str) -> dict[str, Any]:
    """Run one variant in a process of its own, held to one core unless it starts others; return what it printed."""
    live = module.endswith("live_worker")
    arguments = [bootstrap_servers, namespace, *more, *((str(records),) if live else ())]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", module, *arguments]
    may_run_on = os.sched_getaffinity(0) if more[-1].isdigit() and more[-1] != "1" else {CORE}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        preexec_fn=lambda: os.sched_setaffinity(0, may_run_on),  # this process has one thread
    )
    return {"records": records, **json.loads(done.stdout.splitlines()[-1])}


def filled(bootstrap_servers: str, namespace: str, episodes: int) -> tuple[int, int]:
    """Fill a topic; return records and bytes. Every one that is filled so holds the same records."""
    load = [sys.executable, "-m", "benchmarks.replay.load", bootstrap_servers, namespace, str(episodes)]
    done = subprocess.run(load, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    records, size = map(int, done.stdout.split())
    return records, size


def one_round(bootstrap_servers: str, episodes: int, processes: int) -> Seen:
    """Fill a topic, let each variant work on it once, and print what each took.

    The worker's offsets and state belong to a namespace, so all its stages get one of their own with the same records.
    """
    namespace, apart = f"bench-{time.time_ns()}.", f"bench-{time.time_ns()}-all."
    records, size = filled(bootstrap_servers, namespace, episodes)
    if filled(bootstrap_servers, apart, episodes) != (records, size):
        sys.exit("two topics that should hold the same records do not")
    log_size = f"{records} records, {size / 1e6:.0f} MB, {episodes * EVENTS} of them events"
    print(f"{log_size}; load {os.getloadavg()[0]:.1f}")
    results: Seen = {}
    for name, variant in variants(processes).items():
        result = results[name] = measure(bootstrap_servers, apart if name == LIVE_ALL else namespace, records, *variant)
        rate, cpu = result["records"] / result["seconds"], result["cpu_seconds"] / result["records"] * 1e6
        print(f"  {name:16} {rate:8.0f} records/s {cpu:6.1f} CPU µs/record {result['resident_mb']:5.0f} MB"
              + (f" + {result['lane_mb']:.0f} MB each" if result.get("lane_mb") else ""), flush=True)  # fmt: skip
        if result.get("lane_mb"):
            print(f"  {'':16} {result['own_cpu_seconds'] / result['records'] * 1e6:26.1f} of them to put in order")
    check_alike(results, LIVE, [name for name in results if name.startswith("assembly")])
    check_alike(results, LIVE_ALL, [name for name in results if name.startswith("all")])
    return results


def check_alike(results: Seen, live: str, replays: list[str]) -> None:
    """Print what the live worker made; end where a replay made something else, or where it made nothing."""
    live_counts = results[live]["made"]
    print(f"  {live} made " + ", ".join(f"{stage} {count}" for stage, count in live_counts.items()))
    if live == LIVE_ALL and not live_counts["batches"]:
        sys.exit("no batch was cut: not all stages were at work")
    for name in replays:
        if results[name]["made"] != live_counts:
            sys.exit(f"{name} made {results[name]['made']}: that is other work, and not compared")


def main(episodes: int, rounds: int, processes: int) -> None:
    """Start a broker, alternate, print the medians of the ratios, and stop the broker."""
    with broker() as running:
        seen = [one_round(running.bootstrap_servers, episodes, processes) for _ in range(rounds)]
    replays = [name for name in variants(processes) if name not in (READ, LIBRARY, LIVE, LIVE_ALL)]
    for other in (READ, LIBRARY):
        for name in replays:
            tell(name, other, 0.5, seen)
    for name in replays:
        tell(name, LIVE if name.startswith("assembly") else LIVE_ALL, 2.0, seen)


def tell(name: str, other: str, target: float, rounds: list[Seen]) -> None:
    """Print how a variant compares with another, by the wall and by CPU time."""
    rates = [results[other]["seconds"] / results[name]["seconds"] for results in rounds]
    by_cpu = statistics.median(results[other]["cpu_seconds"] / results[name]["cpu_seconds"] for results in rounds)
    spread = f"{min(rates):.2f} to {max(rates):.2f}"
    print(f"{name} / {other}: {statistics.median(rates):.2f} ({spread}), by CPU {by_cpu:.2f}; target {target}")
    if all(results[name].get("lane_mb") for results in rounds):
        alone = statistics.median(
            results[other]["cpu_seconds"] / results[name]["own_cpu_seconds"] for results in rounds
        )
        print(f"  with more cores and processes at most {alone:.2f}, when the one that puts in order is always busy")


if __name__ == "__main__":
    chosen = [int(argument) for argument in sys.argv[1:]]
    main(*chosen, *(8_000, 3, max(2, count_bound_cores()))[len(chosen) :])
