"""Canaries whose rewards come later than the serving version's: the stage itself, record by record, in stream time.

Both versions earn the same unless `effect` says otherwise. Praise comes late and blame at once, or the other way
round, and a share of the rewards never comes. So whatever counts what has come so far compares a version that waits for
its praise with one that has it already.
"""

import heapq
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Literal

from rollbus.schemas.records.config import DeliveryConfig, RunConfig
from rollbus.schemas.records.control import Tick
from rollbus.schemas.records.delivery import EpisodeObserved, PolicyDecision, route
from rollbus.schemas.records.steps import PolicyState, PolicyVersion
from rollbus.schemas.records.trajectories import Location
from rollbus.streams.stages.delivery.evidence.verdict import Verdict
from rollbus.streams.stages.delivery.metric_verdicts import findings
from rollbus.streams.stages.delivery.stage import DeliveryStage
from rollbus.streams.state.stage import Incoming

START_MS = 1_000_000
TICK_MS = 10_000
EPISODE_MS = 1_000
NEVER = 10**9
_NOWHERE = Location(topic="delivery-log", partition=0, offset=0)


@dataclass(frozen=True, slots=True)
class LateWorld:
    """One episode a second, half of them to the canary; delays are exponential around these means."""

    serving_delay_ms: float = 10_000
    canary_delay_ms: float = 40_000
    late: Literal["praise", "blame"] = "praise"
    """What comes with a delay; the other comes with its episode."""
    good: float = 0.6
    effect: float = 0.0
    """Canary − serving, of the share of good episodes."""
    missing: float = 0.2
    """Share of the rewards that never come."""
    wait_ms: int = 600_000
    episodes: int = 2_500
    min_episodes: int = NEVER
    """Of the canary before it is promoted; by default it never is, and can only be stopped."""
    is_zero: bool = False
    """Whether an outstanding reward is taken for a zero: the mistake that is simulated in addition to the product."""


@dataclass(slots=True)
class Canary:
    """One canary, and what became of it."""

    world: LateWorld
    chance: Random
    stage: DeliveryStage = field(init=False)
    state: Any = field(init=False)
    decisions: list[PolicyDecision] = field(default_factory=list)
    verdicts: set[Verdict] = field(default_factory=set)
    """Every one that a tick found of its reward."""
    episodes: int = 0
    """Of both versions, that began while it was the canary."""
    late: list[tuple[int, int, EpisodeObserved]] = field(default_factory=list)
    """Rewards under way: when they come, a number, and the revision that brings them."""

    def __post_init__(self) -> None:
        world = self.world
        config = DeliveryConfig(
            steps=(0.5,), min_episodes=world.min_episodes, max_episodes=NEVER, margin=0.1, wait_ms=world.wait_ms,
            metrics=(),
        )  # fmt: skip
        self.stage = DeliveryStage(RunConfig(delivery=config))
        self.state = self.stage.new_state()

    @property
    def now(self) -> PolicyDecision:
        return self.decisions[-1]

    def play(self) -> "Canary":
        """Go on until it is stopped or promoted, or the episodes are over and all of them are counted."""
        for version in (0, 1):
            self._tick(version)
            state: PolicyState = "candidate" if version else "serving"
            self._feed(PolicyVersion(model="agent", version=version, parent=0 if version else None, run_id="main",
                                     state=state, changed_at_ms=START_MS))  # fmt: skip
        last_ms = self.world.episodes * EPISODE_MS + self.world.wait_ms
        for now_ms in range(2 * TICK_MS, last_ms + 2 * TICK_MS, EPISODE_MS):
            while self.late and self.late[0][0] <= now_ms:
                self._feed(heapq.heappop(self.late)[2])
            if now_ms % TICK_MS == 0:
                self._tick(now_ms // TICK_MS)
                if self.now.canary is None:
                    break
                config = self.state.config.value.delivery
                self.verdicts.add(findings(self.state, config)[0].verdict)
            if self.episodes < self.world.episodes:
                self._begin_episode(now_ms)
        return self

    def _begin_episode(self, now_ms: int) -> None:
        self.episodes += 1
        world, chance, name = self.world, self.chance, f"e{self.chance.getrandbits(64)}"
        version = route(self.now, name)
        is_canary = version == self.now.canary
        is_good = chance.random() < world.good + world.effect * is_canary
        delay_ms = chance.expovariate(1 / (world.canary_delay_ms if is_canary else world.serving_delay_ms))
        comes = chance.random() >= world.missing
        at_once = comes and is_good != (world.late == "praise")
        outstanding = 0.0 if world.is_zero else None
        observed = EpisodeObserved(
            run_id="main", trajectory_id=name, episode_id=name, task="play", first_seen_ms=START_MS + now_ms,
            served_versions=() if version is None else (version,), value=float(is_good) if at_once else outstanding,
        )  # fmt: skip
        self._feed(observed)
        if comes and not at_once:
            revision = replace(observed, revision=1, value=float(is_good))
            heapq.heappush(self.late, (now_ms + int(delay_ms), self.episodes, revision))

    def _tick(self, number: int) -> None:
        now_ms = START_MS + number * TICK_MS
        self._feed(Tick(number=number, stream_time_ms=now_ms, wall_clock_ms=now_ms, interval_ms=TICK_MS))

    def _feed(self, record: Any) -> None:
        for out in self.stage.step(self.state, Incoming(record, "main", _NOWHERE, b"")):
            if isinstance(out.record, PolicyDecision):
                self.decisions.append(out.record)


def play(world: LateWorld, seed: int) -> Canary:
    """Let one canary be judged."""
    return Canary(world, Random(seed)).play()


SHORT_MS = 20_000
NAIVE: dict[str, dict[str, Any]] = {
    "every episode after 20 s": {"wait_ms": SHORT_MS},
    "outstanding as zero, after 20 s": {"wait_ms": SHORT_MS, "is_zero": True},
}
