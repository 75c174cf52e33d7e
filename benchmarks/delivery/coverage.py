"""How often intervals of estimates hold the truth of known worlds.

`python -m benchmarks.delivery.coverage [runs] [picture]`
"""

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from benchmarks.delivery.worlds import KnownDrift, KnownWorld, bandit, drift, game, long_answers
from rollbus.estimates.divergence import estimate_divergence, refuse_divergence
from rollbus.estimates.episode import weight_of
from rollbus.estimates.estimators import estimate_reward
from rollbus.estimates.overlap import measure_overlap

if TYPE_CHECKING:
    from benchmarks.delivery.tickets import Answered

ESTIMATORS = ("ips", "self_normalised", "per_decision", "doubly_robust")
WORLDS = {
    "bandit, near": (bandit(0.3), 400),
    "bandit, further": (bandit(0.8), 400),
    "bandit, rewards are rare": (bandit(0.8, most=0.04), 400),
    "bandit that does a tenth of what was never recorded": (bandit(0.3, never=0.1), 400),
    "game of four turns": (game(0.1), 400),
    "long answers": (long_answers(0.5), 400),
    "longer answers": (long_answers(1.0), 1_000),
}
"""Each with the episodes that are recorded."""
DRIFTS = {
    "answers of one token, hardly moved": (drift(0.02, 0.02), 400),
    "answers of one token, near": (drift(0.3, 0.1), 400),
    "answers of one token, further": (drift(0.6, 0.5), 400),
    "answers of up to 16 tokens, near": (drift(0.3, 0.1, most_tokens=16), 400),
    "answers of up to 16 tokens, further": (drift(0.3, 0.3, most_tokens=16), 400),
    "few answers of up to 16 tokens": (drift(0.3, 0.1, most_tokens=16), 100),
    "a tenth goes to what nobody knows": (drift(0.3, 0.1, never=0.1), 400),
}
TICKET_STEPS = (4, 1, 4, 16)
"""Of the version that answered the tickets, and after it of those that are estimated."""
MOST_REFUSED = 0.8
"""Worlds that are refused more often say too little to be drawn."""


def measure_coverage(world: KnownWorld, *, runs: int, episodes: int) -> tuple[Mapping[str, float], float]:
    """Return by estimator how often its intervals hold the truth, and the share of the runs that were refused."""
    hits_by_estimator, answered = Counter[str](), 0
    for seed in range(runs):
        estimates = estimate_reward(world.draw(Random(seed), episodes), low=world.low, high=1)
        answered += not estimates.overlap.refusal
        for name, estimate in estimates.by_name.items():
            hits_by_estimator[name] += estimate.earned.low <= world.truth <= estimate.earned.high
            hits_by_estimator[f"{name}, difference"] += (
                estimate.difference.low <= world.truth - world.earned <= estimate.difference.high
            )
    return {name: count / max(answered, 1) for name, count in hits_by_estimator.items()}, 1 - answered / runs


def measure_drift(world: KnownDrift, *, runs: int, answers: int) -> tuple[float, float]:
    """Return how often the interval of the divergence holds the truth, and the share of the runs that were refused."""
    hits = answered = 0
    for seed in range(runs):
        drawn = world.draw(Random(seed), answers)
        weights = [weight_of(log_weight) for log_weight, _, _ in drawn]
        overlap = measure_overlap(weights)
        if refuse_divergence(overlap):
            continue
        answered += 1
        apart, tokens = [divergence for _, divergence, _ in drawn], [count for _, _, count in drawn]
        estimate = estimate_divergence(weights, apart, tokens, overlap=overlap)
        hits += estimate.low <= world.truth <= estimate.high
    return hits / max(answered, 1), 1 - answered / runs


def main(runs: int = 300, picture: Path | None = None) -> None:
    """Print the tables of docs/policy-estimate.md, and draw the plot of the first."""
    from benchmarks.delivery.tickets import answered_tickets

    answered = answered_tickets(TICKET_STEPS[0], TICKET_STEPS[1:])
    print(f"{runs} runs each, nominal 95 %: what version and log earned; in brackets their difference\n")
    print(
        "| world | episodes | truth, log | refused |",
        " | ".join(estimator.replace("_", " ") for estimator in ESTIMATORS),
        "|",
    )
    print("|---" * (4 + len(ESTIMATORS)) + "|")
    coverage_by_world = {}
    for name, world, episodes in _all_worlds(answered):
        coverage, refused = measure_coverage(world, runs=runs, episodes=episodes)
        cells = [
            f"{coverage[estimator]:.1%} ({coverage[f'{estimator}, difference']:.1%})" if coverage else "–"
            for estimator in ESTIMATORS
        ]
        truth = f"{world.truth:.3f}, {world.earned:.3f} | {refused:.1%}"
        print(f"| {name} | {episodes} | {truth} | {' | '.join(cells)} |", flush=True)
        if refused < MOST_REFUSED:
            coverage_by_world[name] = coverage
    print(f"\nKL divergence of a version from the base, in nats per token; {runs} runs each\n")
    print("| world | answers | truth | refused | intervals hold |\n|---|---|---|---|---|")
    for name, (drifted, answers) in (DRIFTS | _ticket_drifts(answered)).items():
        share, refused = measure_drift(drifted, runs=runs, answers=answers)
        coverage_text = f"{share:.1%}" if refused < 1 else "–"
        print(f"| {name} | {answers} | {drifted.truth:.4f} | {refused:.1%} | {coverage_text} |", flush=True)
    if picture is not None:
        _draw(coverage_by_world, runs, picture)


def _ticket_drifts(answered: "Mapping[int, Answered]") -> dict[str, tuple[KnownDrift, int]]:
    return {f"tickets, {steps} steps later": (tickets.drift(), 400) for steps, tickets in answered.items()}


def _all_worlds(answered: "Mapping[int, Answered]") -> Iterator[tuple[str, KnownWorld, int]]:
    for name, (world, episodes) in WORLDS.items():
        yield name, world, episodes
    from benchmarks.delivery.game_worlds import game_worlds

    with tempfile.TemporaryDirectory() as folder:
        for name, world in game_worlds(Path(folder), (2, 8, 40)).items():
            yield name, world, 400
    for steps, tickets in answered.items():
        yield f"tickets, {steps} steps later", tickets.world(), 400


def _draw(coverage_by_world: Mapping[str, Mapping[str, float]], runs: int, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, 2, figsize=(10.5, 0.34 * len(coverage_by_world) + 1.2), layout="constrained", sharey=True
    )
    for axis, title, suffix in zip(
        axes, ("what a version earns", "its difference from the log"), ("", ", difference"), strict=True
    ):
        axis.axvspan(0.93, 1.005, color="#e9f0f7", zorder=0)
        axis.axvline(0.95, color="#777777", linestyle="--", linewidth=1, label="nominal")
        marks = zip(ESTIMATORS, ("#b3402a", "#8a6d1f", "#2a8a57", "#1f5fa8"), "^sDo", strict=True)
        for number, (estimator, colour, mark) in enumerate(marks):
            shares = [coverage[f"{estimator}{suffix}"] for coverage in coverage_by_world.values()]
            heights = [row + 0.15 * (number - 1.5) for row in range(len(coverage_by_world))]
            axis.plot(shares, heights, mark, color=colour, markersize=4, label=estimator.replace("_", " "))
        axis.set_title(f"hold {title}", fontsize=10)
        axis.set_xlabel(f"share of {runs} runs", fontsize=9)
        axis.set_xlim(0.88, 1.005)
        axis.set_yticks(range(len(coverage_by_world)), list(coverage_by_world), fontsize=9)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].invert_yaxis()
    axes[0].legend(fontsize=8, frameon=False, loc="lower left")
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300, Path(sys.argv[2]) if len(sys.argv) > 2 else None)
