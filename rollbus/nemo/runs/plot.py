"""The rows of training and validation → reward_plot.png: rewards above, the curriculum's share below."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

DPI = 150
SIZE_INCHES = (10, 7)
VALIDATION_REWARD, ADMITTED_SHARE = "Validation reward", "Share of groups admitted"
"""Labels of the curves that are drawn differently."""


def curves(
    training: Sequence[dict[str, Any]], validation: Sequence[dict[str, Any]]
) -> dict[str, list[tuple[int, float]]]:
    """Return every curve's points by its label; points without a value are left out, curves without points too."""
    sources = {
        "Training reward": (training, "avg_reward"),
        "Training reward, after the curriculum": (training, "filtered_avg_reward"),
        VALIDATION_REWARD: (validation, "avg_reward"),
        ADMITTED_SHARE: (training, "curriculum_percentile"),
    }
    points_by_label = {
        label: [(int(row["epoch"]), float(row[name])) for row in rows if row.get(name) is not None]
        for label, (rows, name) in sources.items()
    }
    return {label: points for label, points in points_by_label.items() if points}


def draw(path: Path, training: Sequence[dict[str, Any]], validation: Sequence[dict[str, Any]]) -> None:
    """Write the picture to a path."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_INCHES)
    FigureCanvasAgg(figure)
    rewards, share = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    for label, points in curves(training, validation).items():
        axes = share if label == ADMITTED_SHARE else rewards
        style = "s--" if label == VALIDATION_REWARD else "o-"
        axes.plot(*zip(*points, strict=True), style, label=label, markersize=4)
    rewards.set(title="Reward by epoch", ylabel="Reward")
    share.xaxis.get_major_locator().set_params(integer=True)
    share.set(xlabel="Epoch", ylabel="Share", ylim=(0, 1.05))
    for axes in (rewards, share):
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(loc="best", fontsize="small")
    figure.savefig(path, dpi=DPI)
