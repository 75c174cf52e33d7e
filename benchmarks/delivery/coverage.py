"""How often intervals of estimates hold the truth of known worlds: `python -m benchmarks.delivery.coverage [runs]`."""

import sys
from collections import Counter
from collections.abc import Mapping
from random import Random

from benchmarks.delivery.worlds import KnownWorld, bandit, game, long_answers
from rollbus.streams.estimates.estimators import estimate_reward

ESTIMATORS = ("ips", "self_normalised", "per_decision", "doubly_robust")
WORLDS = {
    "bandit, near": (bandit(0.3), 400),
    "bandit, further": (bandit(0.8), 400),
    "bandit that does a tenth of what was never recorded": (bandit(0.3, never=0.1), 400),
    "game of four turns": (game(0.1), 400),
    "long answers": (long_answers(0.5), 400),
    "longer answers": (long_answers(1.0), 1_000),
}
"""Each with the episodes that are recorded."""


def measure_coverage(world: KnownWorld, *, runs: int, episodes: int) -> tuple[Mapping[str, float], float]:
    """Return by estimator how often its intervals hold the truth, and the share of the runs that were refused."""
    held, answered = Counter[str](), 0
    for seed in range(runs):
        found = estimate_reward(world.draw(Random(seed), episodes), low=0, high=1)
        answered += not found.overlap.refusal
        for name, each in found.by_name.items():
            held[name] += each.earned.low <= world.truth <= each.earned.high
            held[f"{name}, difference"] += each.difference.low <= world.truth - world.earned <= each.difference.high
    return {name: count / max(answered, 1) for name, count in held.items()}, 1 - answered / runs


def main(runs: int = 1000) -> None:
    """Print the table of docs/delivery.md."""
    print(f"{runs} runs each, nominal 95 %: what version and log earned; in brackets their difference\n")
    print("| world | episodes | refused |", " | ".join(name.replace("_", " ") for name in ESTIMATORS), "|")
    print("|---" * (3 + len(ESTIMATORS)) + "|")
    for name, (world, episodes) in WORLDS.items():
        held, refused = measure_coverage(world, runs=runs, episodes=episodes)
        cells = [f"{held[each]:.1%} ({held[f'{each}, difference']:.1%})" for each in ESTIMATORS]
        print(f"| {name} | {episodes} | {refused:.1%} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
