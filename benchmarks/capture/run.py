"""Alternate the recorders over the same call and print what each adds to it; then sizes, import times and throughput.

python -m benchmarks.capture.run <python with the other recorders> [calls] [rounds] [seconds]
"""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.capture import imports, sizes, throughput

SHARES = (0.5, 0.99)
ROOT = Path(__file__).parents[2]
VARIANTS = ("ours", "langfuse", "opentelemetry", "openinference")


def environment() -> dict[str, str]:
    """Return the environment of a measured process: this repository's packages, nothing sent anywhere."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}


def measure(python: str, variant: str, calls: int) -> dict[str, list[float]]:
    """Run one recorder in a process of its own."""
    command = [python, "-m", "benchmarks.capture.one", variant, str(calls)]
    done = subprocess.run(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def quantile(values: list[float], share: float) -> float:
    """Return the value below which this share lies."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def calls_table(python: str, calls: int, rounds: int) -> None:
    """Print what each recorder adds to the bare call beside it, as medians over alternating rounds."""
    added: dict[str, list[tuple[float, ...]]] = {variant: [] for variant in VARIANTS}
    validation = []
    for _ in range(rounds):
        for variant, found in added.items():
            seen = measure(python, variant, calls)
            validation.append(quantile(seen["validation"], 0.5))
            above = [recorded - bare for recorded, bare in zip(seen["recorded"], seen["bare"], strict=True)]
            found.append(tuple(quantile(above, share) for share in SHARES))
    validating = statistics.median(validation)
    print(f"on the caller's thread, above the bare client; medians of {rounds} rounds of {calls} calls")
    print(f"  {'client validates':16} p50 {validating:6.0f} µs")
    median = {name: [statistics.median(each) for each in zip(*found, strict=True)] for name, found in added.items()}
    for variant, (p50, p99) in median.items():
        print(f"  {variant:16} p50 {p50:6.0f} µs   p99 {p99:6.0f} µs   ours / this {median['ours'][0] / p50:.2f}")
    print("  targets: 0.20 of every other recorder's, 0.20 of what the client validates")
    print(f"  ours / what the client validates: {median['ours'][0] / validating:.2f}")


def main(python: str, calls: int, rounds: int, seconds: float) -> None:
    """Print the four tables."""
    calls_table(python, calls, rounds)
    sizes.main()
    imports.main()
    throughput.main(seconds)


if __name__ == "__main__":
    given = sys.argv[2:]
    main(
        sys.argv[1],
        int(given[0]) if given else 300,
        int(given[1]) if len(given) > 1 else 7,
        float(given[2]) if len(given) > 2 else 60.0,
    )
