"""Alternate the variants over the same load on one broker and print ratios; no number here is a test.

python -m benchmarks.streams.run <bootstrap servers> <python with quixstreams> [episodes] [rounds]
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
PER_EPISODE = 8
VARIANTS = (("bare_aiokafka", sys.executable), ("quix_app", None), ("ours", sys.executable))


def measure(python: str, module: str, arguments: list[str]) -> dict[str, float]:
    """Run one variant in a process of its own; return what it printed last."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / '.make' / 'dev'}", "PYTHONWARNINGS": "ignore"}
    command = [python, "-m", f"benchmarks.streams.{module}", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main(bootstrap_servers: str, quix_python: str, episodes: int, rounds: int) -> None:
    """Print records per second and CPU per record of each variant, and the ratios of ours to the others."""
    namespace, records = f"bench-{time.time_ns()}.", episodes * PER_EPISODE
    load = [sys.executable, "-m", "benchmarks.streams.load", bootstrap_servers, namespace, str(episodes)]
    size = int(subprocess.run(load, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()[1])
    print(f"{records} records, {size / 1e6:.0f} MB")
    seen: dict[str, list[dict[str, float]]] = {}
    for round_number in range(rounds):
        if round_number:  # the worker's ticker writes into the topic too: a load of its own for each round
            namespace = f"bench-{time.time_ns()}."
            subprocess.run([*load[:4], namespace, load[5]], cwd=ROOT, capture_output=True, check=True)
        for module, python in VARIANTS:
            result = measure(python or quix_python, module, [bootstrap_servers, namespace, str(records)])
            seen.setdefault(module, []).append(result)
            rate, cpu = records / result["seconds"], result["cpu_seconds"] / records * 1e6
            print(f"{module:14} {rate:8.0f} records/s {cpu:6.0f} CPU µs/record", flush=True)
    ours = statistics.median(result["seconds"] for result in seen["ours"])
    for module in ("bare_aiokafka", "quix_app"):
        print(f"ours / {module}: {statistics.median(result['seconds'] for result in seen[module]) / ours:.2f}")


if __name__ == "__main__":
    main(
        sys.argv[1],
        sys.argv[2],
        int(sys.argv[3]) if len(sys.argv) > 3 else 4_000,
        int(sys.argv[4]) if len(sys.argv) > 4 else 3,
    )
