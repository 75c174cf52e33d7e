"""Print the table of docs/delivery-statistics.md, and draw its plot.

python -m benchmarks.delivery.run [runs] [picture]
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.delivery.simulation import ALPHA, SimulationResult, World, fixed_horizon, gamed, simulate, two_in_a_row

WORLDS = {
    "no difference": World(),
    "no difference, over a day, tasks changing": World(drift=0.25, hard=0.3),
    "no difference, praise late, a fifth never": World(praise_late=1000, missing=0.2),
    "the same, counted as rewards come": World(praise_late=1000, missing=0.2, as_they_come=True),
    "better by 5 points": World(effect=0.05),
    "worse by 2 points": World(effect=-0.02),
    "worse by 5 points": World(effect=-0.05),
    "worse by 10 points": World(effect=-0.1),
}


def main(runs: int = 1000, picture: Path | None = None) -> None:
    """Simulate every world."""
    print(f"{runs} runs each, α = {ALPHA}; episodes are the canary's: median, and 90th percentile\n")
    print("| world | called worse | called better | after episodes | intervals hold | z test, peeking | z test, once |")
    print("|---|---|---|---|---|---|---|")
    outcomes = {}
    for name, world in WORLDS.items():
        outcome = outcomes[name] = simulate(world, runs=runs, seed=7)
        certain = outcome.worse if world.effect <= 0 else outcome.better
        once = f"{fixed_horizon(world.base, world.effect)} episodes" if world.effect else "–"
        cells = (_share(outcome.worse), _share(outcome.better), _when(certain), f"{outcome.covered.mean():.2%}")
        print(f"| {name} | {' | '.join(cells)} | differs in {_share(outcome.naive)} | {once} |", flush=True)
    first, second = two_in_a_row(runs=runs, seed=7)
    judged = ((second.worse >= 0) | (second.better >= 0)).mean()
    print(f"\ntwo canaries in a row over a day: the first, worse by 10 points, is stopped in {_share(first.worse)};")
    coverage = second.covered.mean()
    print(f"the second, without a difference, is judged in {judged:.2%}; its intervals hold in {coverage:.2%}")
    caught, when = gamed(runs=runs, seed=7)
    print(f"a gamed reward, the judge up by 5 points and the thumbs down by 10: stopped before it is promoted in "
          f"{caught.mean():.2%}, after {_when(when)} episodes")  # fmt: skip
    if picture is not None:
        _draw(outcomes, picture)


def _share(when: NDArray[np.int64]) -> str:
    return f"{(when >= 0).mean():.2%}"


def _when(when: NDArray[np.int64]) -> str:
    decided_episodes = when[when >= 0]
    return (
        f"{np.median(decided_episodes):.0f}, {np.quantile(decided_episodes, 0.9):.0f}"
        if len(decided_episodes) > len(when) / 10
        else "–"
    )


def _draw(outcomes: dict[str, SimulationResult], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10.5, 3.8), layout="constrained")
    null = outcomes["no difference"]
    wrong = np.where(
        null.worse < 0, null.better, np.where(null.better < 0, null.worse, np.minimum(null.worse, null.better))
    )
    _curve(axes[0], null.naive, "z test after every episode", "#b3402a")
    _curve(axes[0], wrong, "this test after every episode", "#1f5fa8")
    axes[0].axhline(ALPHA, color="#777777", linestyle="--", linewidth=1, label="α")
    axes[0].set_title("no difference: share of canaries judged wrongly", fontsize=10)
    for name, colour in (
        ("worse by 10 points", "#1f5fa8"),
        ("worse by 5 points", "#2a8a57"),
        ("worse by 2 points", "#8a6d1f"),
    ):
        _curve(axes[1], outcomes[name].worse, name, colour)
    axes[1].set_title("share of canaries stopped", fontsize=10)
    for axis in axes:
        axis.set_xlabel("episodes of the canary")
        axis.set_ylim(0, None)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(fontsize=9, frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _curve(axis: Any, when: NDArray[np.int64], label: str, colour: str) -> None:
    decided_episodes = np.sort(when[when >= 0])
    axis.step(
        decided_episodes, np.arange(1, len(decided_episodes) + 1) / len(when), label=label, color=colour, where="post"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000, Path(sys.argv[2]) if len(sys.argv) > 2 else None)
