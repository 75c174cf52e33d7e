"""The runs → one figure: reward by lag, and the learning curves at lag 8, for both learning rates."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks.trainer.staleness_task import LAGS, LEARNING_RATES, VARIANTS, Run, Variant, select

COLOURS: dict[Variant, str] = {"none": "#b3402a", "cispo": "#1f5fa8", "mask": "#2a8a57", "ppo": "#8a6d1f"}
SMOOTHED = 8
"""Versions averaged for a curve."""


def draw(runs: Sequence[Run], path: Path) -> None:
    figure, axes = plt.subplots(2, 2, figsize=(10.5, 7), sharey=True, layout="constrained")
    for row, rate in zip(axes, LEARNING_RATES, strict=True):
        _by_lag(row[0], runs, rate)
        _curves(row[1], runs, rate)
    for axis in axes.flat:
        axis.set_ylim(0, None)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].legend(fontsize=9, frameon=False, loc="lower left")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _by_lag(axis: Axes, runs: Sequence[Run], rate: float) -> None:
    for offset, (variant, title) in enumerate(VARIANTS.items()):
        finals_by_lag = [sorted(run.final for run in select(runs, rate, lag, variant)) for lag in LAGS]
        places = [place + 0.06 * (offset - 1.5) for place in range(len(LAGS))]
        middles = [median(values) for values in finals_by_lag]
        spread = [[m - v[0] for m, v in zip(middles, finals_by_lag, strict=True)],
                  [v[-1] - m for m, v in zip(middles, finals_by_lag, strict=True)]]  # fmt: skip
        axis.errorbar(places, middles, yerr=spread, color=COLOURS[variant], marker="o", capsize=3, label=title)
    axis.set_xticks(range(len(LAGS)), [str(lag) for lag in LAGS])
    axis.set_xlabel("lag in steps")
    axis.set_ylabel("reward of the last versions")
    axis.set_title(f"learning rate {rate:g}: median and range over the seeds", fontsize=10)


def _curves(axis: Axes, runs: Sequence[Run], rate: float) -> None:
    lag = LAGS[-1]
    for variant in VARIANTS:
        for run in select(runs, rate, lag, variant):
            axis.plot(_smooth(run.rewards), color=COLOURS[variant], alpha=0.8, linewidth=1.1)
    for run in select(runs, rate, 0, "cispo"):
        axis.plot(_smooth(run.rewards), color="#777777", linestyle="--", linewidth=1.0)
    axis.set_xlabel("step")
    axis.set_title(f"learning rate {rate:g}: every run at lag {lag}; dashed: lag 0", fontsize=10)


def _smooth(values: Sequence[float]) -> list[float]:
    return [fmean(values[max(0, end - SMOOTHED) : end]) for end in range(1, len(values) + 1)]
