"""Reward by lag, with and without correction: runs what is missing, then prints the tables and draws the figure.

    make bench-staleness           python -m benchmarks.trainer.staleness [--budget-s 170] [--figure docs/staleness.png]

Each run is a file; a second start goes on where the first ended. Nothing is timed, so it may run beside other work.
"""

import argparse
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import product
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.progress import track

from benchmarks.trainer.staleness_figure import draw
from benchmarks.trainer.staleness_task import LAGS, LEARNING_RATES, SEEDS, STEPS, VARIANTS, Run, Variant, run, select
from rollbus.runtime.health.alarms.divergence import CollapseLimits, find_alarm

FOLDER = Path(".rollbus/bench-staleness")
WINDOW = 5
"""Steps of the alarm's median."""
COLLAPSED = 0.75
"""A run ends in a collapse where its result is below this share of its own best stretch of 20 versions."""

CORRECTED: tuple[Variant, ...] = ("cispo", "mask", "ppo")

Case = tuple[float, int, Variant, int]


def cases() -> Iterator[Case]:
    """Learning rate, lag, variant and seed; at lag 0 every ratio is 1 and the variants are the same."""
    for rate, lag, variant, seed in product(LEARNING_RATES, LAGS, VARIANTS, SEEDS):
        if lag or variant == "cispo":
            yield rate, lag, variant, seed


def path_of(folder: Path, case: Case) -> Path:
    rate, lag, variant, seed = case
    return folder / f"{rate:g}-lag{lag}-{variant}-seed{seed}.json"


def run_missing(folder: Path, budget_s: float) -> list[Case]:
    """Run until the budget is spent; return what is still missing."""
    folder.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + budget_s
    missing = [case for case in cases() if not path_of(folder, case).exists()]
    left = list(missing)
    for case in track(missing, "runs", console=Console(stderr=True)):
        if time.monotonic() > ends:
            break
        rate, lag, variant, seed = case
        finished_run = run(variant, lag, seed, rate)
        partial = path_of(folder, case).with_suffix(".partial")
        partial.write_text(json.dumps(asdict(finished_run)), encoding="utf-8")
        partial.rename(path_of(folder, case))
        left.remove(case)
    return left


def read(folder: Path) -> list[Run]:
    return [Run(**json.loads(path_of(folder, case).read_text(encoding="utf-8"))) for case in cases()]


def results_table(runs: list[Run], rate: float) -> str:
    """Median over the seeds, lowest to highest in brackets."""
    lines = ["| | " + " | ".join(f"lag {lag}" for lag in LAGS) + " |", "|---" * (len(LAGS) + 1) + "|"]
    for variant, title in VARIANTS.items():
        cells = []
        for lag in LAGS:
            final_rewards = sorted(run_result.final for run_result in select(runs, rate, lag, variant))
            cells.append(f"{median(final_rewards):.2f} ({final_rewards[0]:.2f} to {final_rewards[-1]:.2f})")
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def has_collapsed(run_result: Run) -> bool:
    best = max(sum(run_result.rewards[start : start + 20]) / 20 for start in range(len(run_result.rewards) - 19))
    return run_result.final < COLLAPSED * best


def windows(run_result: Run, metric: str) -> list[float]:
    """What the alarm looks at: the median over each five steps in a row."""
    values = run_result.metrics[metric]
    return [median(values[end - WINDOW : end]) for end in range(WINDOW, len(values) + 1)]


def is_paused(run_result: Run) -> bool:
    """Whether the trainer's alarm, with its limits as they come, would have paused the run."""
    names = ("mismatch_kl", "clip_fraction", "effective_sample_size")
    steps = [
        (step, {name: run_result.metrics[name][step] for name in names}) for step in range(len(run_result.rewards))
    ]
    return any(find_alarm(steps[:end], CollapseLimits()) for end in range(WINDOW, len(steps) + 1))


def alarm_table(runs: list[Run]) -> str:
    """The furthest that the alarm's medians went, in runs that held and in runs that collapsed."""
    titles = ("learning rate", "lag", "runs", "collapsed", "paused", "of them collapsed")
    metrics = ("mismatch_kl", "clip_fraction", "effective_sample_size")
    lines = ["| " + " | ".join((*titles, *metrics)) + " |", "|---" * 9 + "|"]
    for rate, lag in product(LEARNING_RATES, LAGS[1:]):
        cell = [run_result for variant in CORRECTED for run_result in select(runs, rate, lag, variant)]
        furthest = [
            (max(windows(run_result, "mismatch_kl")), max(windows(run_result, "clip_fraction")),
             min(windows(run_result, "effective_sample_size")))
            for run_result in cell
        ]  # fmt: skip
        ranges = [f"{min(values):.2g} to {max(values):.2g}" for values in zip(*furthest, strict=True)]
        paused = [run_result for run_result in cell if is_paused(run_result)]
        counts = (len(cell), sum(map(has_collapsed, cell)), len(paused), sum(map(has_collapsed, paused)))
        lines.append(f"| {rate:g} | {lag} | " + " | ".join([*map(str, counts), *ranges]) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--budget-s", type=float, default=float("inf"), help="run no longer than about this, then say what is left"
    )
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the runs are kept")
    parser.add_argument("--figure", type=Path, default=Path("docs/staleness.png"))
    options = parser.parse_args()
    os.nice(19 - os.nice(0))
    left = run_missing(options.folder, options.budget_s)
    if left:
        print(f"{len(left)} runs are left; start again to go on")
        return
    runs = read(options.folder)
    for rate in LEARNING_RATES:
        print(f"\nMean reward after {STEPS} steps, learning rate {rate:g}:\n\n{results_table(runs, rate)}")
    print(f"\nFurthest medians over {WINDOW} steps, the three with a correction:\n\n{alarm_table(runs)}")
    draw(runs, options.figure)
    print(f"\ndrawn: {options.figure}")


if __name__ == "__main__":
    main()
