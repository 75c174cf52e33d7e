"""Alternate the variants over the same load on a broker of their own and print ratios; no number here is a test.

python -m benchmarks.streams.run <python with quixstreams> [episodes] [rounds]

Quix Streams runs twice: with rollbus's compiled codec, so that the engines alone differ, and with its own Avro classes,
as somebody writes it who has the schemas alone. Bytes written are the growth of the broker's log files while a variant
runs, internal topics included, per byte of the events on the same disk: both as compressed as the clients sent them.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.streams.broker import Broker, broker
from benchmarks.streams.events import EVENTS

ROOT = Path(__file__).parents[2]

VARIANTS = ("plain_faust", "bare_aiokafka", "quix_app", "quix_fastavro", "ours")
TARGETS = {"bare_aiokafka": 1.0, "quix_app": 2.0, "quix_fastavro": 2.0}
"""What ours is to reach of each by rate; plain Faust stands beside them without one."""
LABELS = {"quix_app": "quix_app (our codec)", "quix_fastavro": "quix with fastavro"}
Seen = list[dict[str, dict[str, float]]]


def measure(python: str, module: str, arguments: list[str]) -> dict[str, float]:
    """Run one variant in a process of its own; return what it printed last."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    command = [python, "-m", f"benchmarks.streams.{module}", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def log_bytes(data: Path, prefix: str = "") -> int:
    """Return the size of the broker's log files, of all topics or of those that begin so."""
    return sum(path.stat().st_size for path in data.glob(f"{prefix}*/*.log"))


def label(module: str) -> str:
    """Return how a variant is told to people."""
    return LABELS.get(module, module)


def one_round(running: Broker, quix_python: str, episodes: int) -> dict[str, dict[str, float]]:
    """Fill topics of their own, let each variant work on them once, and print what each took."""
    bootstrap_servers, data = running.bootstrap_servers, running.data
    namespace, records, results = f"bench-{time.time_ns()}.", episodes * EVENTS, {}
    load = [sys.executable, "-m", "benchmarks.streams.load", bootstrap_servers, namespace, str(episodes)]
    size = int(subprocess.run(load, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.split()[1])
    ingested = log_bytes(data, namespace)
    print(f"{records} records, {size / 1e6:.0f} MB, {ingested / 1e6:.0f} MB compressed; load {os.getloadavg()[0]:.1f}")
    for module in VARIANTS:
        before = log_bytes(data)
        python = quix_python if module.startswith("quix") else sys.executable
        result = measure(python, module, [bootstrap_servers, namespace, str(records)])
        done = result.get("records", records)
        rate, cpu = done / result["seconds"], result["cpu_seconds"] / done * 1e6
        written = (log_bytes(data) - before) / ingested * records / done
        results[module] = {"records_per_s": rate, "cpu_us": cpu, "written": written}
        figures = f"{rate:8.0f} records/s {cpu:6.0f} CPU µs/record {written:5.2f} bytes written per byte in"
        print(f"  {label(module):20} {figures}", flush=True)
        if (converting := result.get("conversion_us")) is not None:
            results[module]["conversion_us"] = converting
    return results


def main(quix_python: str, episodes: int, rounds: int) -> None:
    """Start a broker, alternate, print medians and the ratios of ours to the others, and stop the broker."""
    with broker() as running:
        round_results = [one_round(running, quix_python, episodes) for _ in range(rounds)]
    print(f"medians of {rounds} alternating rounds, and the lowest and highest rate:")
    for module in VARIANTS:
        rate, cpu, written = (
            statistics.median(results[module][what] for results in round_results)
            for what in ("records_per_s", "cpu_us", "written")
        )
        rates = [results[module]["records_per_s"] for results in round_results]
        span = f"({min(rates):.0f} to {max(rates):.0f})"
        figures = f"{rate:8.0f} records/s {span:18} {cpu:6.0f} CPU µs/record {written:5.2f} bytes per byte in"
        print(f"  {label(module):20} {figures}")
        if "conversion_us" in round_results[0][module]:
            converting = statistics.median(results[module]["conversion_us"] for results in round_results)
            print(
                f"  {'':20} {converting:.1f} of the µs turn dictionaries into records and back: {converting / cpu:.0%}"
            )
    for module in VARIANTS[:-1]:
        compare(module, round_results)


def compare(module: str, rounds: Seen) -> None:
    """Print how ours compares with a variant, by rate and by CPU time, beside the target."""
    ratios = [results["ours"]["records_per_s"] / results[module]["records_per_s"] for results in rounds]
    by_cpu = statistics.median(results[module]["cpu_us"] / results["ours"]["cpu_us"] for results in rounds)
    target = f"; target {TARGETS[module]} by rate" if module in TARGETS else ""
    span = f"({min(ratios):.2f} to {max(ratios):.2f})"
    print(f"  ours / {label(module)}: {statistics.median(ratios):.2f} {span}, by CPU {by_cpu:.2f}{target}")


if __name__ == "__main__":
    main(
        sys.argv[1],
        int(sys.argv[2]) if len(sys.argv) > 2 else 12_000,
        int(sys.argv[3]) if len(sys.argv) > 3 else 5,
    )
