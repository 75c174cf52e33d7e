"""One seed to a small history in which time is under attack: partitions and stages that lag far behind others, kills,
settings changed while no worker runs, a clock that leaps, feedback that changes, versions that are rolled back, and
replays that are promoted.

The stages are live's, and so is what decides when a tick may go on. Some histories have a stage or a partition that
stands still until the end.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from rollbus.schemas.codec import encode
from rollbus.schemas.records.config import (
    AssemblyConfig,
    BatchingConfig,
    CurriculumConfig,
    GroupingConfig,
    RewardConfig,
    RunConfig,
    ScoringConfig,
)
from rollbus.schemas.records.control import ConfigApplied
from rollbus.schemas.topics import CONFIGURED, EPISODE_EVENTS, RUN_LOG
from rollbus.streams.pipeline import AnyStage, namespace_stages, run_stages
from rollbus.streams.state.payload import bind_payload
from rollbus.streams.state.stage import PureAsEffects
from tests.builders import (
    START_MS,
    make_command,
    make_config,
    make_episode,
    make_excluded,
    make_reward,
    make_version,
)
from tests.streams.simulation.cluster import Cluster, Task
from tests.streams.simulation.history import SentRecord, SimulatedTicker
from tests.streams.simulation.judging import REGISTRY
from tests.streams.simulation.log import Broker
from tests.streams.simulation.trainer import SimulatedTrainer

INTERVAL_MS = 10_000
LEAPS_MS = (-3_600_000, 0, INTERVAL_MS, INTERVAL_MS, INTERVAL_MS, 3_600_000)
"""By how much the wall clock is another than at the last tick."""
ASSEMBLY = AssemblyConfig(inactivity_ms=30_000, late_horizon_ms=100_000)
ASSEMBLIES = (ASSEMBLY, ASSEMBLY.model_copy(update={"inactivity_ms": 10_000}))
SCORINGS = (
    ScoringConfig(),
    ScoringConfig(rewards=(RewardConfig(weight=2.0),)),
    ScoringConfig(rewards=(RewardConfig(), RewardConfig(type="moody", name="mood"))),
)
SKIPPING = BatchingConfig(groups_per_step=1, max_waiting_groups=2)
AT_ONCE: dict[str, Any] = {"reward_wait_ms": 0, "reward_grace_ms": 0}
PLAIN_RUNS = (
    RunConfig(grouping=GroupingConfig(strategy="by_example", group_size=2, window_ms=20_000, **AT_ONCE),
              batching=SKIPPING),
    RunConfig(grouping=GroupingConfig(strategy="by_example", group_size=3, window_ms=20_000, reward_wait_ms=25_000,
                                      reward_grace_ms=15_000), batching=SKIPPING),
    RunConfig(grouping=GroupingConfig(strategy="by_prompt", group_size=2, window_ms=30_000, **AT_ONCE),
              curriculum=CurriculumConfig(mode="harness", groups_per_window=2, window_span_ms=20_000),
              batching=BatchingConfig(groups_per_step=1, batches_ahead=2, flush_ms=20_000)),
    RunConfig(grouping=GroupingConfig(group_size=2, window_ms=20_000, reward_wait_ms=25_000), batching=SKIPPING),
    RunConfig(grouping=GroupingConfig(strategy="single", reward_wait_ms=0), batching=SKIPPING),
)  # fmt: skip
_PLACES = (RewardConfig(type="places"),)
RUNS: tuple[RunConfig, ...] = (
    *PLAIN_RUNS,
    *(
        run.model_copy(update={"grouping": run.grouping.model_copy(update={"rewards": _PLACES})})
        for run in PLAIN_RUNS
        if run.grouping.strategy != "single"
    ),
)
PLAIN_SEEDS, JUDGED_SEEDS = range(5), range(5, 9)
"""Places of the runs: a run whose groups are judged stays one."""
Settings = tuple[int, int, int]
"""Places of assembly, scoring and run above."""


@dataclass(frozen=True, slots=True)
class Lagging:
    """What happened, at rest."""

    broker: Broker
    assembly: AssemblyConfig
    scoring: ScoringConfig
    run: RunConfig
    """The settings in the end, which a replay begins with."""


def lagging(seed: int) -> Lagging:
    """Return the history of a seed."""
    return _History(random.Random(seed)).play()


class _History:
    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.runs = JUDGED_SEEDS if chance.random() < 0.2 else PLAIN_SEEDS
        self.settings: Settings = (0, 0, chance.choice(self.runs))
        self.broker = Broker(chance.choice((1, 2)))
        self.cluster = Cluster(self.broker, self._stages(), chance, workers=chance.randint(1, 2))
        self.ticker = SimulatedTicker(self.cluster, _configs(self.settings))
        self.wall_clock_ms = START_MS
        self.slow = frozenset(task.name for task in self.cluster.tasks if chance.random() < 0.25)
        """Tasks that get their turn seldom."""
        self.patience = chance.choice((0.0, 0.05, 0.3))
        self.commands = 0

    def _stages(self) -> list[AnyStage]:
        stages = _stages(self.settings)
        bind_payload(stages, self.broker)
        return stages

    def play(self) -> Lagging:
        chance = self.chance
        self.ticker.tick(0)
        self.ticker.settle(self.cluster)  # a setting that no stage has seen yet cannot be changed
        sent = list(_events(chance))
        while sent:
            dice = chance.random()
            if dice < 0.15:
                self.cluster.crash(chance.randrange(self.cluster.workers))
            elif dice < 0.25:
                self._change_settings()
            elif dice < 0.35:
                self._interfere()
            elif dice < 0.8:
                self._tick()
            for event, data in [sent.pop() for _ in range(min(len(sent), chance.randint(1, 8)))]:
                self.broker.publish(EPISODE_EVENTS, event.root_episode_id, data)
            self._work(chance.randint(0, 12))
        for _ in range(chance.randint(2, 4)):
            self._tick()
            self._work(chance.randint(0, 12))
        self.cluster.hurries = True
        self.ticker.settle(self.cluster)
        assembly, scoring, run = self.settings
        return Lagging(self.broker, ASSEMBLIES[assembly], SCORINGS[scoring], RUNS[run])

    def _work(self, steps: int) -> None:
        for _ in range(steps):
            task = self.chance.choice(self.cluster.tasks)
            if self._gets_its_turn(task):
                self.cluster.resume(task)
            self.ticker.pass_on()

    def _gets_its_turn(self, task: Task) -> bool:
        return task.name not in self.slow or self.chance.random() < self.patience

    def _tick(self) -> None:
        self.wall_clock_ms += self.chance.choice(LEAPS_MS)
        self.ticker.tick_at(self.wall_clock_ms, INTERVAL_MS)

    def _change_settings(self) -> None:
        """End all workers; those that come later have other settings."""
        for worker in range(self.cluster.workers):
            self.cluster.crash(worker)
        scoring = self.chance.randrange(len(SCORINGS))
        self.settings = (self.chance.randrange(len(ASSEMBLIES)), scoring, self.chance.choice(self.runs))
        self.cluster.replace_stages(self._stages())
        self.ticker.configs = _configs(self.settings)

    def _promote(self) -> None:
        """Put configurations into effect in the middle of a round, as `rollbus replay promote` does."""
        configs = _configs((0, self.chance.randrange(len(SCORINGS)), self.chance.choice(self.runs)))
        for record in configs[1:]:  # not assembly's
            for topic in CONFIGURED[record.stage]:
                for partition in range(self.broker.partitions_of(topic)):
                    self.broker.publish(topic, "", encode(record), partition)

    def _interfere(self) -> None:
        """Let an operator end a window, roll a version back, or promote a replay."""
        if self.chance.random() < 0.2:
            self._promote()
            return
        self.commands += 1
        record: Any = make_command("end_window", key=str(self.commands))
        if self.chance.random() < 0.5:
            record = make_version(self.chance.randint(1, 3), 0, state="rolled_back", changed_at_ms=self.commands)
        self.broker.publish(RUN_LOG, "main", encode(record))


def _events(chance: random.Random) -> Iterator[SentRecord]:
    """Yield the events of a few episodes, last first, mostly in their order."""
    events: list[tuple[float, SentRecord]] = []
    for group in range(chance.choice((1, 1, 2))):
        for attempt in range(chance.choice((1, 2, 3))):
            begin = chance.random() * 3
            name = f"e{group}-{attempt}"
            for event in _episode(name, group, chance.choice((None, 0.0, 1.0))):
                if chance.random() > 0.03:
                    events.append((begin, event))
                begin += chance.random()
            events += [
                (begin + chance.random() * 3, _feedback(name, number, chance.choice(_KINDS)))
                for number in range(chance.choice((0, 0, 0, 1, 3)))
            ]
    events.sort(key=lambda pair: -pair[0])
    return (event for _, event in events)


_KINDS = ("reward", "supersedes", "retracted", "retracts all", "excluded")


@cache
def _episode(name: str, group: int, reward: float | None) -> tuple[SentRecord, ...]:
    events = make_episode(name, reward=reward, start={"example_id": f"x{group}"})
    return tuple((event, encode(event)) for event in events)


@cache
def _feedback(name: str, number: int, kind: str) -> SentRecord:
    event: Any
    if kind == "excluded":
        event = make_excluded(name)
    else:
        before = make_reward(name, 3.0, key=str(number - 1), writer="feedback").event_id
        changes_by_kind: dict[str, dict[str, Any]] = {
            "reward": {},
            "supersedes": {"supersedes": before},
            "retracted": {"supersedes": before, "retracted": True},
            "retracts all": {"retracted": True},
        }
        changes = changes_by_kind[kind]
        value = None if changes.get("retracted") else 3.0 + number
        event = make_reward(name, value, key=str(number), writer="feedback", **changes)
    return event, encode(event)


@cache
def _configs(settings: Settings) -> tuple[ConfigApplied, ...]:
    assembly, scoring, run = ASSEMBLIES[settings[0]], SCORINGS[settings[1]], RUNS[settings[2]]
    judging = ("group-scoring",) * bool(run.grouping.rewards)
    of_run = (make_config(stage, run, run_id=run.run_id) for stage in ("grouping", *judging, "curriculum"))
    return make_config("assembly", assembly), make_config("scoring", scoring), *of_run


@cache
def _stages(settings: Settings) -> list[AnyStage]:
    assembly, scoring, run = settings
    stages = namespace_stages(ASSEMBLIES[assembly], SCORINGS[scoring], registry=REGISTRY)
    return [*stages, *run_stages(RUNS[run], registry=REGISTRY), PureAsEffects(SimulatedTrainer())]
