"""Groups by policy version and two evaluations → one PNG: how the agents played as they learned, and the result."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rollbus.demo.job import DemoJob
from rollbus.demo.show.comparison import FORMULAS, BeforeAndAfter, ConfidenceInterval, rate_of
from rollbus.demo.show.status import GroupWins
from rollbus.schemas.records.steps import Evaluation
from rollbus.trainer.validation.evaluation import mean_interval

INK, GRID, TRAFFIC, HELD_OUT = "#22303c", "#dfe5ea", "#2a7ab8", "#d9822b"
WINDOW_GROUPS = 64
"""Groups to a point: ± 8 points of wins."""


@dataclass(frozen=True, slots=True)
class Point:
    """Groups of neighbouring policy versions, taken together."""

    version: float
    """Their mean."""
    wins: ConfidenceInterval


def points(groups: Sequence[GroupWins], size: int = WINDOW_GROUPS) -> tuple[Point, ...]:
    """Join `size` neighbouring groups to a point; the remainder joins the last one."""
    count = max(1, len(groups) // size)
    cuts = [*(number * size for number in range(count)), len(groups)]
    windows = [groups[low:high] for low, high in pairwise(cuts)]
    return tuple(_point(window) for window in windows if window)


def draw(
    path: Path,
    job: DemoJob,
    groups: Sequence[GroupWins],
    comparison: BeforeAndAfter,
    references: Sequence[tuple[str, float]],
    *,
    seed: int,
) -> None:
    """Write the picture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    build_figure(job, groups, comparison, references, seed=seed).savefig(path)


def build_figure(
    job: DemoJob,
    groups: Sequence[GroupWins],
    comparison: BeforeAndAfter,
    references: Sequence[tuple[str, float]],
    *,
    seed: int,
) -> Figure:
    """Return the picture: the course of the rewards, and both evaluations."""
    figure = Figure(figsize=(12, 5.6), dpi=130, layout="constrained", facecolor="white")
    course, outcome = figure.subplots(1, 2, width_ratios=(5, 3))
    _draw_course(course, job, points(groups), comparison, references)
    _draw_outcomes(outcome, job, comparison)
    gain = comparison.gain
    before, after = (100 * rate.value for rate in comparison.rates())
    figure.suptitle(
        f"{job.words.result}\n{before:.1f} % → {after:.1f} % {job.words.success}  ({100 * gain.value:+.1f} points, "
        f"95 % interval {100 * gain.low:+.1f} to {100 * gain.high:+.1f})",
        fontsize=12.5,
        color=INK,
        fontweight="bold",
    )
    figure.supxlabel(
        f"seed {seed} · {comparison.after.episodes} {job.words.evaluation_unit}, "
        f"before and after the same · {FORMULAS}",
        fontsize=8,
        color="#6b7884",
    )
    return figure


def _point(groups: Sequence[GroupWins]) -> Point:
    """Attempts of a group are not independent of one another, groups are."""
    middle = sum(group.version for group in groups) / len(groups)
    return Point(middle, ConfidenceInterval(*mean_interval([group.wins for group in groups])))


def _draw_course(
    axes: Axes,
    job: DemoJob,
    course: Sequence[Point],
    comparison: BeforeAndAfter,
    references: Sequence[tuple[str, float]],
) -> None:
    versions = [point.version for point in course]
    low, value, high = ([100 * getattr(p.wins, side) for p in course] for side in ("low", "value", "high"))
    axes.fill_between(versions, low, high, color=TRAFFIC, alpha=0.18, linewidth=0)
    axes.plot(versions, value, color=TRAFFIC, linewidth=2.2, label="in traffic (95 % band)")
    for evaluation in (comparison.before, comparison.after):
        wins = rate_of(evaluation, comparison.success)
        axes.errorbar(
            [evaluation.policy_version],
            [100 * wins.value],
            yerr=[[100 * (wins.value - wins.low)], [100 * (wins.high - wins.value)]],
            fmt="o",
            color=HELD_OUT,
            markersize=8,
            capsize=5,
            linewidth=2,
            label="held out (95 %)" if evaluation is comparison.before else None,
        )
    last = max([comparison.after.policy_version, *versions])
    for name, share in references:
        axes.axhline(100 * share, color="#8895a0", linewidth=1, linestyle=(0, (5, 4)), zorder=0)
        axes.annotate(
            f"{name} {100 * share:.1f} %",
            (last, 100 * share),
            xytext=(-14, 3),
            textcoords="offset points",
            ha="right",
            fontsize=8.5,
            color="#6b7884",
        )
    axes.set_ylim(_lowest(course, comparison, references), 100)
    axes.set_xlabel("policy version (one per GRPO step)")
    axes.set_ylabel(f"{job.words.success} in %")
    axes.set_title("While it learned", loc="left", fontsize=11, color=INK)
    axes.legend(loc="upper left", bbox_to_anchor=(0, 0.88), frameon=False, fontsize=9)
    _plain(axes)


def _draw_outcomes(axes: Axes, job: DemoJob, comparison: BeforeAndAfter) -> None:
    for place, evaluation in enumerate((comparison.before, comparison.after)):
        _draw_bar(axes, job, place, evaluation)
    axes.set_xticks(
        [0, 1],
        [f"before\nversion {comparison.before.policy_version}", f"after\nversion {comparison.after.policy_version}"],
    )
    axes.set_xlim(-0.6, 1.6)
    axes.set_ylim(0, 112)
    axes.set_yticks(range(0, 101, 20))
    axes.set_title("Held out", loc="left", fontsize=11, color=INK)
    axes.legend(loc="upper center", ncols=4, frameon=False, fontsize=8.5, handlelength=1, columnspacing=1)
    _plain(axes)


def _draw_bar(axes: Axes, job: DemoJob, place: int, evaluation: Evaluation) -> None:
    bottom, success = 0.0, job.outcomes[0][0]
    for outcome, colour in job.outcomes:
        share = 100 * rate_of(evaluation, outcome).value
        axes.bar(place, share, bottom=bottom, width=0.62, color=colour, label=None if place else outcome)
        if share >= 3:
            text = "white" if outcome == success else INK
            axes.text(place, bottom + share / 2, f"{share:.1f}", ha="center", va="center", color=text, fontsize=10)
        bottom += share
    rate = rate_of(evaluation, success)
    error = [[100 * (rate.value - rate.low)], [100 * (rate.high - rate.value)]]
    axes.errorbar(place + 0.24, 100 * rate.value, yerr=error, color=INK, capsize=4, linewidth=1.4)


def _lowest(course: Sequence[Point], comparison: BeforeAndAfter, references: Sequence[tuple[str, float]]) -> float:
    """Return where the axis begins: below everything that is drawn, at a round ten."""
    points = [
        *(point.wins.low for point in course),
        *(rate.low for rate in comparison.rates()),
        *dict(references).values(),
    ]
    return max(0.0, 10 * (100 * min(points) // 10) - 5)


def _plain(axes: Axes) -> None:
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=9, length=0)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(GRID)
