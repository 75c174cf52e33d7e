"""Alternate the recorders over the same call and print what each adds to it; then sizes, import times and throughput.

python -m benchmarks.capture.run <python with the other recorders> [calls] [rounds] [seconds]
"""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.capture import imports, memory, sizes, throughput
from benchmarks.capture.answer import CHUNKS

SHARES = (0.5, 0.99)
ROOT = Path(__file__).parents[2]
STREAM_TARGETS = f"{CHUNKS} chunks; 0.5 of Langfuse's, 1.0 of OpenTelemetry's"
KINDS = {
    "answer": "0.20 of every other recorder's, 0.20 of what the client validates",
    "stream": STREAM_TARGETS,
    "asynchronous stream": STREAM_TARGETS,
}
VARIANTS = ("ours", "langfuse", "opentelemetry", "openinference")


def environment() -> dict[str, str]:
    """Return the environment of a measured process: this repository's packages, nothing sent anywhere."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}


def measure(python: str, variant: str, calls: int) -> dict[str, dict[str, list[float]]]:
    """Run one recorder in a process of its own; returns times by kind of call and by what was called."""
    command = [python, "-m", "benchmarks.capture.one_recorder", variant, str(calls)]
    done = subprocess.run(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def quantile(values: list[float], share: float) -> float:
    """Return the value below which this share lies."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def calls_table(python: str, calls: int, rounds: int) -> None:
    """Print what each recorder adds to the bare call beside it, of all calls in alternating rounds."""
    added: dict[str, dict[str, list[float]]] = {kind: {name: [] for name in VARIANTS} for kind in KINDS}
    validation: list[float] = []
    for _ in range(rounds):
        for variant in VARIANTS:
            times = measure(python, variant, calls)
            validation += times["answer"]["validation"]
            for kind, added_by_variant in added.items():
                pairs = zip(times[kind]["recorded"], times[kind]["bare"], strict=True)
                added_by_variant[variant] += [recorded_us - bare for recorded_us, bare in pairs]
    validating = statistics.median(validation)
    print(f"on the caller's thread, above the bare client; {rounds} alternating rounds")
    print(f"  {'client validates':16} p50 {validating:6.0f} µs")
    for kind, added_by_variant in added.items():
        ours = print_kind(kind, added_by_variant)
        if kind == "answer":
            print(f"  ours / what the client validates: {ours / validating:.2f}")


def print_kind(kind: str, added: dict[str, list[float]]) -> float:
    """Print the figures of one kind of call; returns our median."""
    quantiles = {name: [quantile(times, share) for share in SHARES] for name, times in added.items()}
    ours = quantiles["ours"][0]
    print(f"{kind}, {len(added['ours'])} calls of each (targets: {KINDS[kind]})")
    for variant, (p50, p99) in quantiles.items():
        print(f"  {variant:16} p50 {p50:6.0f} µs   p99 {p99:6.0f} µs   ours / this {ours / p50:.2f}")
    return ours


def main(python: str, calls: int, rounds: int, seconds: float) -> None:
    """Print the five tables."""
    calls_table(python, calls, rounds)
    sizes.main()
    memory.main()
    imports.main()
    throughput.main(seconds)


if __name__ == "__main__":
    given = sys.argv[2:]
    main(
        sys.argv[1],
        int(given[0]) if given else 400,
        int(given[1]) if len(given) > 1 else 7,
        float(given[2]) if len(given) > 2 else 60.0,
    )
