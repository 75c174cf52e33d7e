"""Assembly in a rollbus worker compared with the same stage in Quix Streams, in turns on a broker of their own.

python -m benchmarks.streams.run <python with quixstreams> [episodes] [rounds]

Bytes written are the growth of the broker's log files while a variant runs, internal topics included, per byte of the
events on the same disk: both as compressed as the clients sent them.
"""

import asyncio
import os
import sys
import time
from pathlib import Path
from statistics import median

from benchmarks.common import Broker, at_least, at_most, broker, reported, run_module
from benchmarks.streams.events import EVENTS
from benchmarks.streams.load import load

VARIANTS = ("quix_app", "ours")
CPU_US, TIMES_QUIX, CHANGELOG_KB = 25.0, 3.0, 0.3
"""Targets: of an event; by processor time; of the rows of state for each event."""
Round = dict[str, dict[str, float]]


def log_bytes(data: Path, prefix: str = "") -> int:
    """Return the size of the broker's log files, of all topics or of those that begin so."""
    return sum(path.stat().st_size for path in data.glob(f"{prefix}*/*.log"))


def one_round(running: Broker, quix_python: str, episodes: int) -> Round:
    """Fill topics of their own, let each variant work on them once, and print what each took."""
    namespace, results = f"bench-{time.time_ns()}.", Round()
    records, size = asyncio.run(load(running.bootstrap_servers, namespace, episodes))
    events_bytes = log_bytes(running.data, namespace)
    print(
        f"{records} records, {size / 1e6:.0f} MB, {events_bytes / 1e6:.0f} MB compressed; load {os.getloadavg()[0]:.1f}"
    )
    for variant in VARIANTS:
        before = log_bytes(running.data)
        python = quix_python if variant == "quix_app" else sys.executable
        arguments = (running.bootstrap_servers, namespace, str(records))
        result = run_module(python, f"benchmarks.streams.{variant}", *arguments)
        results[variant] = {
            "rate": records / result["seconds"],
            "cpu_us": result["cpu_seconds"] / records * 1e6,
            "written": (log_bytes(running.data) - before) / events_bytes,
            "changelog_kb": result.get("changelog_bytes", 0) / records / 1000,
        }
        print(f"  {variant:10} {figures_of(results[variant])}", flush=True)
    return results


def figures_of(result: dict[str, float]) -> str:
    """Return the figures of a variant as people read them."""
    rate, cpu, written = (result[name] for name in ("rate", "cpu_us", "written"))
    return f"{rate:8.0f} records/s {cpu:6.0f} CPU µs/record {written:5.2f} bytes written per byte in"


def main(quix_python: str, episodes: int, rounds: int) -> None:
    """Start a broker, alternate, print medians with their range and the targets, and stop the broker."""
    with broker() as running:
        seen = [one_round(running, quix_python, episodes) for _ in range(rounds)]
    print(f"medians of {rounds} rounds of {episodes * EVENTS} events:")
    for variant in VARIANTS:
        medians = {name: median(results[variant][name] for results in seen) for name in seen[0][variant]}
        rates = [results[variant]["rate"] for results in seen]
        print(reported(variant, f"{figures_of(medians)}; {min(rates):.0f} to {max(rates):.0f} records/s"))
    by_cpu = [results["quix_app"]["cpu_us"] / results["ours"]["cpu_us"] for results in seen]
    by_rate = [results["ours"]["rate"] / results["quix_app"]["rate"] for results in seen]
    spread = f"{min(by_cpu):.2f} to {max(by_cpu):.2f}; by rate {median(by_rate):.2f}"
    print(at_least("ours × Quix with our codec, by CPU", median(by_cpu), TIMES_QUIX, spread))
    print(at_most("CPU µs an event", median(results["ours"]["cpu_us"] for results in seen), CPU_US, "median"))
    changelog_kb = median(results["ours"]["changelog_kb"] for results in seen)
    print(at_most("kB in the changelog for each event", changelog_kb, CHANGELOG_KB, "in a backlog, before compression"))


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[2:]]
    main(sys.argv[1], *(numbers + [12_000, 5][len(numbers) :]))
