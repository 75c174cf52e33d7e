"""Alternate the recorders over the same call and print what each adds to it, with the targets.

python -m benchmarks.capture.run <python with the other recorders> [calls] [rounds]
"""

import sys
from statistics import median

from benchmarks.common import at_most, reported, run_module

VARIANTS = ("ours", "langfuse", "opentelemetry")
TARGETS = {
    "answer": {"langfuse": 0.15, "opentelemetry": 0.2},
    "stream": {"langfuse": 0.5},
    "asynchronous stream": {"langfuse": 0.5},
}
"""Of each kind of call, which share of another recorder's cost ours may have."""


def quantile(values: list[float], share: float) -> float:
    """Return the value below which this share lies."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main(python: str, calls: int, rounds: int) -> None:
    """Print what each recorder adds to the bare call next to it, of all calls in alternating rounds."""
    added_us: dict[str, dict[str, list[float]]] = {kind: {name: [] for name in VARIANTS} for kind in TARGETS}
    for _ in range(rounds):
        for variant in VARIANTS:
            times = run_module(python, "benchmarks.capture.one_recorder", variant, str(calls))
            for kind, added_by_variant in added_us.items():
                pairs = zip(times[kind]["recorded"], times[kind]["bare"], strict=True)
                added_by_variant[variant] += [recorded_us - bare_us for recorded_us, bare_us in pairs]
    print(f"µs on the caller's thread above the bare client; {rounds} alternating rounds")
    for kind, added_by_variant in added_us.items():
        for variant, values in added_by_variant.items():
            figures = f"p50 {median(values):.0f}, p99 {quantile(values, 0.99):.0f}, of {len(values)} calls"
            print(reported(f"{kind}, {variant}", figures))
        ours_us = median(added_by_variant["ours"])
        for other, target in TARGETS[kind].items():
            share = ours_us / median(added_by_variant[other])
            print(at_most(f"{kind}, ours / {other}", share, target, f"{ours_us:.0f} µs"))


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[2:]]
    main(sys.argv[1], *(numbers + [400, 7][len(numbers) :]))
