"""What it takes to stop a good version, or to promote a bad one: a principal who wants it, beside honest traffic.

python -m benchmarks.delivery.adversary [runs]

Every world has 16,000 episodes at shares of 2, 10 and 30 %, as the other simulations. The serving version is good in
60 % of its episodes. Each run ends when the canary is certainly worse, or when it is promoted. Seed 7. The last table
is of honest principals alone: how many episodes of a canary it takes more to stop it, since no verdict rests on one.
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
    principals: int = 1
    """By how many it acts, each with an equal part of its episodes."""
    may_decide: bool = False
    """Whether a verdict may rest on one principal that has less than half of the episodes."""
    is_honest: bool = False
    """Whether it reports what it sees."""
    most: float = 1.0
    """`max_share_per_principal`."""


WAYS: dict[str, Attack] = {
    "its ids choose the canary, no bound": Attack(0, 0, chooses=True, is_bounded=False, may_decide=True),
    "it gives up what another version answers, nobody signs": Attack(
        0, 0, chooses=True, is_signed=False, may_decide=True
    ),
    "the same, by a principal of its own, or unsigned beside others who sign": Attack(0, 0, chooses=True),
    "it reports falsely on what chance gives it, nobody signs": Attack(0, 0, is_signed=False, may_decide=True),
    "the same, by one that signs, or does not beside others who sign": Attack(0, 0),
    "the same, by two principals": Attack(0, 0, principals=2),
    "the same, by two principals, `max_share_per_principal: 0.05`": Attack(0, 0, principals=2, most=0.05),
}
HONEST: dict[str, Attack] = {
    "one principal": Attack(0, 0, is_honest=True),
    "ten, with a tenth of the episodes each": Attack(0.9, 0, is_honest=True, principals=9),
    "two, with 90 and 10 %": Attack(0.1, 0, is_honest=True),
    "two, with 60 and 40 %": Attack(0.4, 0, is_honest=True),
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

    @property
    def episodes(self) -> Floats:
        """Of both arms."""
        return self.canary + self.serving

    def add(self, seen: Bools, canary: Bools, share: Floats) -> None:
        """Add an episode to the runs where it is seen."""
        self.canary += seen & canary
        self.serving += seen & ~canary
        self.expected += seen * share
        self.variance += seen * share * (1 - share)


@dataclass(slots=True)
class Group:
    """One principal's episodes, and its part of the effect, for all runs."""

    runs: int
    balances: Balances = field(init=False)
    sums: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.balances, self.sums = Balances(self.runs), np.zeros((3, self.runs))

    def may_count(self, canary: Bools, share: Floats, everybody: Balances, plan: Attack, *, is_strange: bool) -> Bools:
        """Where one more episode of an arm may count."""
        may = np.ones(self.runs, bool)
        if plan.is_bounded and plan.is_signed:
            may &= self.balances.is_by_chance(canary, share)
        if plan.most < 1 and is_strange:
            arm = np.where(canary, everybody.canary, everybody.serving) + 1
            in_arm = np.where(canary, self.balances.canary, self.balances.serving) + 1
            may &= in_arm <= np.maximum(SMALL, plan.most * arm)
        return may

    def add(self, seen: Bools, canary: Bools, share: Floats, change: Floats) -> None:
        """Add an episode, and by what it changed the effect, to the runs where it is seen."""
        self.balances.add(seen, canary, share)
        self.sums += seen * change


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Per run: how the canary ended."""

    stopped: Bools
    promoted: Bools
    ended: Floats
    """Episodes of the canary when it was stopped; −1 where it never was."""


def attack(plan: Attack, *, runs: int, seed: int) -> Outcomes:
    """Return what became of the canary in each run."""
    chance, arms, limit = np.random.default_rng(seed), Arms(runs), limits(ALPHA)
    groups, everybody = [Group(runs) for _ in range(plan.principals + 1)], Balances(runs)
    steps, step = np.array(STEPS), np.zeros(runs, np.int64)
    stopped, promoted = np.zeros(runs, bool), np.zeros(runs, bool)
    ended = np.full(runs, -1.0)
    wants_worse, zeros = plan.effect > 0, np.zeros(runs, np.int64)
    for _ in range(EPISODES):
        if (stopped | promoted).all():
            break
        share = steps[step]
        who, drawn, worth = chance.random((3, runs))
        strange, canary = who < plan.share, drawn < share
        number = np.where(strange, np.floor(who / max(plan.share, 1e-9) * plan.principals), plan.principals)
        canary |= strange & plan.chooses
        honest = worth < BASE + plan.effect * canary
        good = honest if plan.is_honest else np.where(strange, canary != wants_worse, honest)
        seen, sums = ~(stopped | promoted), arms_sums(arms)
        for place, group in enumerate(groups):
            seen &= (number != place) | group.may_count(
                canary, share, everybody, plan, is_strange=place < plan.principals
            )
        everybody.add(seen, canary, share)
        arms.add(seen, good.astype(float), canary, share, zeros)
        for place, group in enumerate(groups):
            group.add(seen & (number == place), canary, share, arms_sums(arms) - sums)
        radius, counted = limit(arms.variance), arms.counts.sum(1)[1]
        worse, fine = -arms.total >= radius, arms.total + MARGIN * arms.weight >= radius
        in_doubt = np.zeros(runs, bool)
        for group in () if plan.may_decide else groups:
            total, variance, weight = arms_sums(arms) - group.sums
            is_minor, rest = 2 * group.balances.episodes < everybody.episodes, limit(np.maximum(variance, 0.0))
            in_doubt |= worse & is_minor & (-total < rest)
            fine &= ~is_minor | (total + MARGIN * weight >= rest)
        stopped |= ~promoted & worse & ~in_doubt
        enough = (counted - MIN_EPISODES * step >= MIN_EPISODES) & ~in_doubt
        is_last = step == len(steps) - 1
        if plan.is_bounded and not plan.is_signed:  # what nobody signs is not told apart: it holds the canary
            enough &= np.abs(everybody.canary - everybody.expected) <= DEVIATIONS * np.sqrt(everybody.variance) + SLACK
        promoted |= ~stopped & enough & is_last & fine
        ended = np.where((ended < 0) & stopped, counted, ended)
        step = np.where(enough & ~is_last, step + 1, step)
    return Outcomes(stopped, promoted, ended)


def arms_sums(arms: Arms) -> Floats:
    """Return what an effect is made of: total, variance and weight."""
    return np.stack((arms.total, arms.variance, arms.weight))


def main(runs: int) -> None:
    """Print the table of docs/delivery-adversary.md."""
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
    print("| worse by 10 points, all honest | stopped | canary's episodes: median, 90 % |\n|---|---|---|")
    for name, way in HONEST.items():
        ends = attack(replace(way, effect=-0.1), runs=runs, seed=SEED)
        middle, most = np.quantile(ends.ended[ends.stopped], (0.5, 0.9))
        print(f"| {name} | {ends.stopped.mean():.1%} | {middle:.0f}, {most:.0f} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
