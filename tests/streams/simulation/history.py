"""One seed to one history: which episodes, lost and repeated events, commands and ticks, and every fault on the way.

Half of the histories are calm: no time-out falls between an episode's events, so its fate can be worked out at once.
In the others ticks are long, rewards come late and an operator interferes.
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
from rollbus.schemas.records.events import AliasDeclared
from rollbus.schemas.topics import ALIASES, EPISODE_EVENTS, RUN_LOG, STAGE_INPUTS
from rollbus.streams.pipeline import AnyStage, namespace_stages, run_stages
from rollbus.streams.state.payload import bind_payload
from rollbus.streams.state.stage import PureAsEffects
from tests.builders import (
    START_MS,
    make_alias,
    make_alias_reward,
    make_command,
    make_episode,
    make_excluded,
    make_reward,
    make_tick,
)
from tests.streams.simulation.cluster import Cluster
from tests.streams.simulation.judging import REGISTRY
from tests.streams.simulation.log import Broker, Cheat
from tests.streams.simulation.trainer import SimulatedTrainer

ASSEMBLY = AssemblyConfig(inactivity_ms=30_000, gap_grace_ms=20_000, late_horizon_ms=100_000)
GROUPING = GroupingConfig(group_size=2, window_ms=50_000)
MAIN: tuple[RunConfig, ...] = (
    RunConfig(
        grouping=GROUPING,
        batching=BatchingConfig(groups_per_step=1, max_off_policy_steps=1, max_waiting_groups=2),
    ),
    RunConfig(
        grouping=GROUPING,
        curriculum=CurriculumConfig(mode="harness", groups_per_window=2, window_span_ms=45_000, expansion_interval=1),
        batching=BatchingConfig(groups_per_step=2, batches_ahead=2, flush_ms=30_000),
    ),
    RunConfig(
        grouping=GROUPING.model_copy(update={"rewards": (RewardConfig(type="places", name="place", weight=2.0),)}),
        batching=BatchingConfig(groups_per_step=1, max_off_policy_steps=1, max_waiting_groups=2),
    ),
)
OTHER = RunConfig(
    run_id="other",
    grouping=GroupingConfig(strategy="baseline", reward_grace_ms=5_000, feedback_tasks=("play",)),
    curriculum=CurriculumConfig(mode="pools", groups_per_window=3),
    batching=BatchingConfig(groups_per_step=2),
)
SECONDS_CALM, SECONDS_WILD = (1,), (1, 15, 40)
Sent = tuple[Any, bytes]
"""An event and its bytes."""
_POISON: tuple[bytes, ...] = (
    b"",
    b"\xc3\x01 no schema has these bytes",
    b"\xc3\x02 no header of ours",
    encode(make_command("pause")),
)
"""What no stage of the events takes: unreadable, and misplaced."""
COMMANDS: tuple[Any, ...] = ("end_window", "pause", "resume", "stop")


@dataclass(frozen=True, slots=True)
class Past:
    """What happened, at rest."""

    seed: int
    calm: bool
    events: list[Any]
    """Each event that was published, once."""
    runs: tuple[RunConfig, ...]
    cluster: Cluster

    @property
    def broker(self) -> Broker:
        """The log."""
        return self.cluster.broker


def live(seed: int, cheat: Cheat = "") -> Past:
    """Return the history of a seed."""
    chance = random.Random(seed)
    calm, partitions = chance.random() < 0.5, chance.choice((1, 2))
    main, others = chance.randrange(len(MAIN)), int(chance.random() < 0.2)
    runs, stages = _stages(main, others)
    broker = Broker(partitions, cheat)
    bind_payload(stages, broker)
    cluster = Cluster(broker, stages, chance, workers=chance.randint(1, 3))
    events = list(_events(chance, calm))
    sent = [*events, *(chance.choice(events) for _ in range(chance.randint(0, 3)))]
    chance.shuffle(sent)
    clock = _Clock(broker)
    clock.tick(0)
    while sent:
        _disturb(chance, cluster, clock, calm)
        for _ in range(min(len(sent), chance.randint(1, 6))):
            event, data = sent.pop()
            if clock.remembers(event):
                _publish(chance, broker, event, data)
        for _ in range(chance.randint(0, 12)):
            cluster.advance()
    cluster.settle()  # before time passes: a score under way must not miss its group
    cluster.hurries = True
    for seconds in (60, 60):
        clock.tick(seconds)
        _disturb(chance, cluster, clock, calm=True)
        cluster.settle()
    return Past(seed, calm, [event for event, _ in events], runs, cluster)


class _Clock:
    """The ticker: one tick goes into every partition of every stage's input."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self._number, self._now_ms, self._commands = broker, -1, START_MS, 0
        self._first_ms: dict[str, int] = {}

    def tick(self, seconds: int) -> None:
        self._number += 1
        self._now_ms += seconds * 1_000
        data = _tick(self._number, self._now_ms)
        for topic in dict.fromkeys(STAGE_INPUTS.values()):
            for partition in range(self._broker.partitions_of(topic)):
                self._broker.publish(topic, "tick", data, partition)

    def remembers(self, event: Any) -> bool:
        """Say whether the stages still know what they made of the first event of an episode, or of an alias.

        What comes after the late horizon begins again, as documented: else they would have to keep every fate for ever.
        """
        first_ms = self._first_ms.setdefault(event.episode_id or event.alias, self._now_ms)
        return self._now_ms < first_ms + ASSEMBLY.late_horizon_ms

    def command(self, name: Any) -> None:
        """Put an operator's command into the run's log, twice, as a retried one may be."""
        self._commands += 1
        command = make_command(name, key=str(self._commands))
        for _ in range(2):
            self._broker.publish(RUN_LOG, "main", encode(command))


def _publish(chance: random.Random, broker: Broker, event: Any, data: bytes) -> None:
    """Write an event, now and then twice, and something unreadable or misplaced beside it."""
    topic, key = (EPISODE_EVENTS, event.root_episode_id)
    if not event.episode_id or isinstance(event, AliasDeclared):
        topic, key = ALIASES, event.alias
    if topic is EPISODE_EVENTS and chance.random() < 0.05:
        broker.publish(topic, key, data)
    broker.publish(topic, key, data)
    if chance.random() < 0.03:
        broker.publish(topic, key, chance.choice(_POISON))


def _disturb(chance: random.Random, cluster: Cluster, clock: _Clock, calm: bool) -> None:
    """Let one thing happen that nobody planned, often."""
    dice = chance.random()
    if dice < 0.25:
        cluster.crash(chance.randrange(cluster.workers))
    elif dice < 0.4:
        cluster.workers = chance.randint(1, 3)
        cluster.assign()
    elif dice < 0.65:
        clock.tick(chance.choice(SECONDS_CALM if calm else SECONDS_WILD))
    elif dice < 0.7 and not calm:
        clock.command(chance.choice(COMMANDS))
    for _ in range(chance.randint(0, 3)):
        cluster.wake_zombie()


def _events(chance: random.Random, calm: bool) -> Iterator[Sent]:
    for group in range(chance.choice((1, 1, 2))):
        attempts = chance.choice((1, 2, 2, 3))
        for attempt in range(attempts):
            rewarded = chance.random() < 0.9
            episode = _episode(group, attempt, max(2, attempts), float(attempt) if rewarded else None)
            lost = chance.randrange(len(episode)) if chance.random() < 0.1 else -1
            yield from (event for index, event in enumerate(episode) if index != lost)
            if not calm and chance.random() < 0.3:
                yield _late(f"e{group}-{attempt}", chance.choice(("reward", "reward", "excluded")))
            if not calm and chance.random() < 0.2:
                yield from _by_alias(f"e{group}-{attempt}", declared=chance.random() < 0.8)


@cache
def _episode(group: int, attempt: int, size: int, reward: float | None) -> tuple[Sent, ...]:
    start = {"group_id": f"g{group}", "group_size": size, "example_id": None}
    events = make_episode(f"e{group}-{attempt}", reward=reward, start=start)
    return tuple((event, encode(event)) for event in events)


@cache
def _late(name: str, kind: str) -> Sent:
    event = make_reward(name, 7.0, key="late", writer="feedback") if kind == "reward" else make_excluded(name)
    return event, encode(event)


@cache
def _by_alias(name: str, declared: bool) -> tuple[Sent, ...]:
    events = [make_alias_reward(f"order {name}", 0.5), *[make_alias(f"order {name}", name)] * declared]
    return tuple((event, encode(event)) for event in events)


@cache
def _tick(number: int, now_ms: int) -> bytes:
    return encode(make_tick(number, stream_time_ms=now_ms))


@cache
def _stages(main: int, others: int) -> tuple[tuple[RunConfig, ...], list[AnyStage]]:
    runs = (MAIN[main], OTHER)[: 1 + others]
    stages = namespace_stages(ASSEMBLY, ScoringConfig(), registry=REGISTRY)
    stages += [stage for run in runs for stage in run_stages(run, registry=REGISTRY)]
    return runs, [*stages, PureAsEffects(SimulatedTrainer())]
