"""What it takes to stop a good version, or to promote a bad one: a principal who wants it, beside honest traffic.

python -m benchmarks.delivery.adversary [runs]

Every world has 16,000 episodes at shares of 2, 10 and 30 %, as the other simulations. The serving version is good in
60 % of its episodes. Each run ends when the canary is certainly worse, or when it is promoted. Seed 7.
"""

import sys
from dataclasses import dataclass, field, replace

import numpy as np

from benchmarks.delivery.simulation import ALPHA, Arms, Bools, Floats, limits
from rollbus.streams.stages.delivery.evidence.balance import DEVIATIONS, SLACK, SMALL

SEED = 7
EPISODES, STEPS, MIN_EPISODES, BASE, MARGIN = 16_000, (0.02, 0.1, 0.3), 100, 0.6, 0.02
SHARES = (0.0, 0.01, 0.02, 0.1, 0.3)


@dataclass(frozen=True, slots=True)
class Attack:
    """How a principal tries it, and what it meets."""

    share: float
    """Of the recorded episodes."""
    effect: float
    """Canary − serving, of honest episodes; what is good is to be stopped, what is bad to be promoted."""
    chooses: bool = False
    """All of its episodes are the canary's: it computes ids for it, or gives up what other versions answer."""
    is_bounded: bool = True
    """Whether an arm takes no more of a principal than chance gives it."""
    is_signed: bool = True
    """Whether its episodes can be told from others'."""
    most: float = 1.0
    """`max_share_per_principal`."""


WAYS: dict[str, Attack] = {
    "its ids choose the canary, no bound": Attack(0, 0, chooses=True, is_bounded=False),
    "it gives up what another version answers, nobody signs": Attack(0, 0, chooses=True, is_signed=False),
    "the same, by a principal of its own": Attack(0, 0, chooses=True),
    "it reports falsely on what chance gives it": Attack(0, 0),
    "the same, `max_share_per_principal: 0.05`": Attack(0, 0, most=0.05),
}


@dataclass(slots=True)
class Balances:
    """`Balance` of one principal, for all runs."""

    runs: int
    canary: Floats = field(init=False)
    serving: Floats = field(init=False)
    expected: Floats = field(init=False)
    variance: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.canary, self.serving, self.expected, self.variance = (np.zeros(self.runs) for _ in range(4))

    def is_by_chance(self, canary: Bools, share: Floats) -> Bools:
        """Where one more episode of an arm may be by chance."""
        excess = self.canary + canary - self.expected - share
        radius = DEVIATIONS * np.sqrt(self.variance + share * (1 - share)) + SLACK
        return np.asarray(((excess > 0) != canary) | (np.abs(excess) <= radius))

    def add(self, seen: Bools, canary: Bools, share: Floats) -> None:
        """Add an episode to the runs where it is seen."""
        self.canary += seen & canary
        self.serving += seen & ~canary
        self.expected += seen * share
        self.variance += seen * share * (1 - share)


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Per run: how the canary ended."""

    stopped: Bools
    promoted: Bools


def attack(plan: Attack, *, runs: int, seed: int) -> Outcomes:
    """Return what became of the canary in each run."""
    chance, arms, limit = np.random.default_rng(seed), Arms(runs), limits(ALPHA)
    strangers, others, everybody = Balances(runs), Balances(runs), Balances(runs)
    steps, step = np.array(STEPS), np.zeros(runs, np.int64)
    stopped, promoted = np.zeros(runs, bool), np.zeros(runs, bool)
    wants_worse, zeros = plan.effect > 0, np.zeros(runs, np.int64)
    for _ in range(EPISODES):
        share = steps[step]
        who, drawn, worth = chance.random((3, runs))
        strange, canary = who < plan.share, drawn < share
        canary |= strange & plan.chooses
        good = np.where(strange, canary != wants_worse, worth < BASE + plan.effect * canary)
        seen = ~(stopped | promoted)
        if plan.is_bounded and plan.is_signed:
            seen &= np.where(strange, strangers.is_by_chance(canary, share), others.is_by_chance(canary, share))
        if plan.most < 1:
            arm = np.where(canary, everybody.canary, everybody.serving) + 1
            in_arm = np.where(canary, strangers.canary, strangers.serving) + 1
            seen &= ~strange | (in_arm <= np.maximum(SMALL, plan.most * arm))
        strangers.add(seen & strange, canary, share)
        others.add(seen & ~strange, canary, share)
        everybody.add(seen, canary, share)
        arms.add(seen, good.astype(float), canary, share, zeros)
        radius, counted = limit(arms.variance), arms.counts.sum(1)[1]
        stopped |= ~promoted & (-arms.total >= radius)
        enough = counted - MIN_EPISODES * step >= MIN_EPISODES
        is_last = step == len(steps) - 1
        if plan.is_bounded and not plan.is_signed:  # what nobody signs is not told apart: it holds the canary
            enough &= np.abs(everybody.canary - everybody.expected) <= DEVIATIONS * np.sqrt(everybody.variance) + SLACK
        promoted |= ~stopped & enough & is_last & (arms.total + MARGIN * arms.weight >= radius)
        step = np.where(enough & ~is_last, step + 1, step)
    return Outcomes(stopped, promoted)


def main(runs: int) -> None:
    """Print the table of docs/delivery.md."""
    print(f"{runs} runs each, α = {ALPHA}, seed {SEED}\n")
    shares = " | ".join(f"{share:.0%}" for share in SHARES)
    for effect, what in ((0.05, "stopped, though better by 5 points"), (-0.2, "promoted, though worse by 20 points")):
        print(f"| {what}: its share of the episodes | {shares} |\n|{'---|' * (1 + len(SHARES))}")
        for name, way in WAYS.items():
            cells = []
            for share in SHARES:
                ends = attack(replace(way, share=share, effect=effect), runs=runs, seed=SEED)
                cells.append(f"{(ends.stopped if effect > 0 else ends.promoted).mean():.1%}")
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
        print()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
