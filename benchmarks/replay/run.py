"""Alternate reading, replays and the live worker over the same topic on a broker of their own; print rates and ratios.

python -m benchmarks.replay.run [episodes] [rounds]

The targets: a replay reaches half the rate of reading and decoding alone, and twice the live worker's, on one core.
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

ROOT = Path(__file__).parents[2]
VARIANTS: dict[str, tuple[str, ...]] = {
    "read and decode": ("benchmarks.replay.read_only",),
    "replay assembly": ("benchmarks.replay.replayed", "assembly", "written"),
    "replay all": ("benchmarks.replay.replayed", "all", "written"),
    "replay all, dry": ("benchmarks.replay.replayed", "all", "dry"),
    "live assembly": ("benchmarks.streams.ours",),
}


def measure(bootstrap_servers: str, namespace: str, records: int, module: str, *more: str) -> dict[str, float]:
    """Run one variant in a process of its own; return what it printed last."""
    arguments = [bootstrap_servers, namespace, *(more or ((str(records),) if module.endswith("ours") else ()))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return {"records": records, **json.loads(done.stdout.splitlines()[-1])}


def one_round(bootstrap_servers: str, episodes: int) -> dict[str, dict[str, float]]:
    """Fill a topic, let each variant work on it once, and print what each took."""
    namespace, records = f"bench-{time.time_ns()}.", episodes * EVENTS
    load = [sys.executable, "-m", "benchmarks.streams.load", bootstrap_servers, namespace, str(episodes)]
    size = int(subprocess.run(load, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.split()[1])
    print(f"{records} records, {size / 1e6:.0f} MB")
    found = {}
    for name, variant in VARIANTS.items():
        result = found[name] = measure(bootstrap_servers, namespace, records, *variant)
        rate, cpu = result["records"] / result["seconds"], result["cpu_seconds"] / result["records"] * 1e6
        print(f"  {name:16} {rate:8.0f} records/s {cpu:6.1f} CPU µs/record {result['resident_mb']:5.0f} MB")
    return found


def main(episodes: int, rounds: int) -> None:
    """Start a broker, alternate, print the medians of the ratios, and stop the broker."""
    with broker() as running:
        seen = [one_round(running.bootstrap_servers, episodes) for _ in range(rounds)]
    for name, other in (("replay all", "read and decode"), ("replay assembly", "read and decode"),
                        ("replay assembly", "live assembly")):  # fmt: skip
        ratios = [found[other]["seconds"] / found[name]["seconds"] for found in seen]
        print(f"{name} / {other}: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3_000, int(sys.argv[2]) if len(sys.argv) > 2 else 3)
