"""Many canaries at once, episode by episode: the sums of `streams.evidence.effect` as arrays, one entry per run.

A test holds these arrays to the product's own arithmetic. Beside the product's test runs the one that it replaces: a z
test that is looked at after every canary episode.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import pi

import numpy as np
from numpy.typing import NDArray

from rollbus.streams.stages.delivery.evidence.effect import PRIOR_EPISODES
from rollbus.streams.stages.delivery.evidence.mixture import bound

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
ALPHA = 0.05
Z = 1.959964
FIRST_LOOK = 30
"""Canary episodes before the naive test looks for the first time."""


@dataclass(frozen=True, slots=True)
class World:
    """What the episodes of both arms are worth."""

    base: float = 0.6
    effect: float = 0.0
    """Canary − serving, of the share of good episodes."""
    episodes: int = 16_000
    steps: tuple[float, ...] = (0.02, 0.1, 0.3)
    min_episodes: int = 100
    """Of the canary, at each step."""
    drift: float = 0.0
    """Amplitude of a day of 10,000 episodes."""
    hard: float = 0.0
    """How much less the second of two tasks is worth; its share of the traffic goes from 0 to 1 during the run."""
    praise_late: int = 0
    """Rewards of good episodes come so many episodes later; those of bad ones at once."""
    missing: float = 0.0
    """Share of the episodes whose reward never comes."""
    alpha: float = ALPHA
    """What of α this metric has."""


@dataclass(slots=True)
class SimulationResult:
    """Per run: canary episodes when something was certain; −1 where it never was."""

    worse: NDArray[np.int64]
    better: NDArray[np.int64]
    naive: NDArray[np.int64]
    """Either direction."""
    canary: NDArray[np.int64]
    """Canary episodes at the end."""
    ended: NDArray[np.int64]
    """Episodes of both arms when the canary was certainly worse; −1 where it never was."""
    covered: Bools
    """Whether every interval on the way held the true effect."""


@dataclass(slots=True)
class Arms:
    """The sums of `Effect` and of two `Stratum`, for all runs."""

    runs: int
    total: Floats = field(init=False)
    variance: Floats = field(init=False)
    weight: Floats = field(init=False)
    counts: Floats = field(init=False)
    sums: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.total, self.variance, self.weight = (np.zeros(self.runs) for _ in range(3))
        self.counts, self.sums = np.zeros((2, 2, self.runs)), np.zeros((2, 2, self.runs))

    def add(self, seen: Bools, outcome: Floats, canary: Bools, share: Floats, stratum: NDArray[np.int64]) -> None:
        """Add an episode to the runs where it is seen."""
        rows = np.arange(self.runs)
        n, s = self.counts[:, stratum, rows], self.sums[:, stratum, rows]
        serving = (s[0] + 0.5) / (n[0] + 1)
        other = (s[1] + PRIOR_EPISODES * serving) / (n[1] + PRIOR_EPISODES)
        weight = share * (1 - share)
        surprise = np.where(canary, (1 - share) * (outcome - other), -share * (outcome - serving))
        self.total += seen * (surprise + weight * (other - serving))
        self.variance += seen * surprise * surprise
        self.weight += seen * weight
        arm = canary.astype(np.int64)
        self.counts[arm, stratum, rows] += seen
        self.sums[arm, stratum, rows] += seen * outcome


def simulate(world: World, *, runs: int, seed: int, began: NDArray[np.int64] | None = None) -> SimulationResult:
    """Return what was found in each run; `began` says per run at which hour of the day the canary came."""
    chance, arms, limit = np.random.default_rng(seed), Arms(runs), limits(world.alpha)
    began = np.zeros(runs, np.int64) if began is None else began
    steps = np.array(world.steps)
    step = np.zeros(runs, np.int64)
    worse, better, naive, ended = (np.full(runs, -1) for _ in range(4))
    covered, waiting = np.ones(runs, bool), deque[Episodes]()
    for episode in range(world.episodes):
        waiting.append(_start(world, episode, began, steps[step], chance))
        due = waiting.popleft() if len(waiting) > world.praise_late else None
        if due is not None:
            due.count(arms, due.comes)
        n = arms.counts.sum(1)
        radius = limit(arms.variance)
        covered &= np.abs(arms.total - world.effect * arms.weight) <= radius
        worse = np.where((worse < 0) & (-arms.total >= radius), n[1], worse).astype(np.int64)
        ended = np.where((ended < 0) & (worse >= 0), episode, ended).astype(np.int64)
        better = np.where((better < 0) & (arms.total >= radius), n[1], better).astype(np.int64)
        naive = np.where((naive < 0) & (n[1] >= FIRST_LOOK) & _differs(arms), n[1], naive).astype(np.int64)
        at_step = n[1] - world.min_episodes * step
        step = np.where((at_step >= world.min_episodes) & (step < len(steps) - 1), step + 1, step)
    return SimulationResult(worse, better, naive, arms.counts.sum(1)[1].astype(np.int64), ended, covered)


@dataclass(frozen=True, slots=True)
class Episodes:
    """The episodes that start at one moment, one in each run."""

    share: Floats
    canary: Bools
    good: Bools
    comes: Bools
    stratum: NDArray[np.int64]

    def count(self, arms: Arms, seen: Bools) -> None:
        """Add their outcomes in the runs where they are seen."""
        arms.add(seen, self.good.astype(float), self.canary, self.share, self.stratum)


def _start(
    world: World, episode: int, began: NDArray[np.int64], share: Floats, chance: np.random.Generator
) -> Episodes:
    stratum, canary, good, comes = chance.random((4, len(share)))
    kind, is_canary = (stratum < episode / world.episodes).astype(np.int64), canary < share
    hour = np.sin(2 * pi * (episode + began) / 10_000)
    worth = world.base + world.effect * is_canary - world.hard * kind + world.drift * hour
    return Episodes(share, is_canary, good < worth, comes >= world.missing, kind)


def two_in_a_row(*, runs: int, seed: int) -> tuple[SimulationResult, SimulationResult]:
    """A canary that is worse by 10 points, and one without a difference that begins where the first was stopped."""
    day = World(drift=0.25)
    first = simulate(replace(day, effect=-0.1), runs=runs, seed=seed)
    return first, simulate(day, runs=runs, seed=seed + 1, began=np.where(first.worse < 0, day.episodes, first.ended))


def gamed(*, runs: int, seed: int) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """A judge that rises by 5 points while the thumbs fall by 10: whether a run was stopped before it was promoted.

    Also the canary's episodes when the thumbs were certainly worse; −1 where they never were.
    """
    judge = simulate(World(effect=0.05, alpha=ALPHA / 2), runs=runs, seed=seed)
    thumbs = simulate(World(effect=-0.1, alpha=ALPHA / 2), runs=runs, seed=seed + 1)
    never = np.iinfo(np.int64).max
    least = World().min_episodes * len(World().steps)
    promoted = np.where(judge.better < 0, never, np.maximum(judge.better, least))
    return np.where(thumbs.worse < 0, never, thumbs.worse) < promoted, thumbs.worse


def _differs(arms: Arms) -> Bools:
    n, s = np.maximum(arms.counts.sum(1), 1), arms.sums.sum(1)
    means = s / n
    error = np.sqrt((means * (1 - means) / n).sum(0))
    return np.asarray(np.abs(means[1] - means[0]) > Z * np.maximum(error, 1e-9))


def limits(alpha: float) -> Callable[[Floats], Floats]:
    """Return `bound` for arrays: between 2,000 points of it."""
    at = np.concatenate(([0.0], np.geomspace(1e-3, 1e5, 2000)))
    values = np.array([bound(float(count), alpha / 2) for count in at])
    return lambda variance: np.interp(variance, at, values)
