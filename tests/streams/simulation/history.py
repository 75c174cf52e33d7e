"""One seed to one history: which episodes, lost and repeated events, commands and ticks, and every fault on the way.

Half of the histories are calm: no time-out falls between an episode's events, so its fate can be worked out at once.
In the others ticks are long, rewards come late and an operator interferes.
"""

import random
from collections.abc import Iterator, Sequence
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
from rollbus.schemas.records.control import ConfigApplied, Tick
from rollbus.schemas.records.events import AliasDeclared
from rollbus.schemas.topics import ALIASES, EPISODE_EVENTS, RUN_LOG, Topic
from rollbus.streams.pipeline import AnyStage, namespace_stages, run_stages
from rollbus.streams.state.payload import bind_payload
from rollbus.streams.state.stage import PureAsEffects
from rollbus.streams.state.ticker import Pulse, config_changes, next_tick
from rollbus.streams.state.watermarks import Watermarks, hops
from tests.builders import (
    START_MS,
    make_alias,
    make_alias_reward,
    make_command,
    make_config,
    make_episode,
    make_excluded,
    make_reward,
    make_tick,
)
from tests.streams.simulation.cluster import Cluster
from tests.streams.simulation.judging import REGISTRY
from tests.streams.simulation.log import Broker, Cheat
from tests.streams.simulation.trainer import SimulatedTrainer

ASSEMBLY = AssemblyConfig(inactivity_ms=30_000, late_horizon_ms=100_000)
GROUPING = GroupingConfig(strategy="by_example", group_size=2, window_ms=50_000, reward_wait_ms=0, reward_grace_ms=0)
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
OTHER_RUN = RunConfig(
    run_id="other",
    grouping=GroupingConfig(window_ms=20_000, reward_wait_ms=5_000),
    curriculum=CurriculumConfig(mode="pools", groups_per_window=3),
    batching=BatchingConfig(groups_per_step=2),
)
SECONDS_CALM, SECONDS_WILD = (1,), (1, 15, 40)
SentRecord = tuple[Any, bytes]
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
    clock = SimulatedTicker(cluster, _configs(main, others))
    clock.tick(0)
    while sent:
        _disturb(chance, cluster, clock, calm)
        for _ in range(min(len(sent), chance.randint(1, 6))):
            event, data = sent.pop()
            if clock.remembers(event):
                _publish(chance, broker, event, data)
        for _ in range(chance.randint(0, 16)):
            cluster.advance()
            if chance.random() < 0.3:
                clock.pass_on()
    clock.settle(cluster)  # before time passes: a score under way must not miss its group
    cluster.hurries = True
    for seconds in (60, 60):
        clock.tick(seconds)
        _disturb(chance, cluster, clock, calm=True)
        clock.settle(cluster)
    return Past(seed, calm, [event for event, _ in events], runs, cluster)


class SimulatedTicker:
    """The ticker: a tick goes into every partition of an input once the stages before have passed it."""

    def __init__(self, cluster: Cluster, configs: Sequence[ConfigApplied] = ()) -> None:
        self._broker, self._commands, self._now_ms = cluster.broker, 0, START_MS
        self.configs, self._applied = configs, dict[str, str]()
        """What the settings say now; a change counts from the next tick on."""
        self._watermarks = Watermarks(hops(configs), self._broker.partitions_of)
        self._pulses: list[Pulse] = []
        self._moved = False
        """Whether a stage or the clock has moved since the last look."""
        self._number = -1
        self._first_ms: dict[str, int] = {}
        self._stream_ms = dict.fromkeys((ALIASES.name, EPISODE_EVENTS.name), START_MS)
        """Time of the newest tick that was written, by topic of events: it waits for the stages before."""
        cluster.on_tick = self._note

    def tick(self, seconds: float) -> None:
        """Let time pass."""
        self._pulse(make_tick(self._number + 1, stream_time_ms=self._now_ms + int(seconds * 1_000)))

    def tick_at(self, wall_clock_ms: int, interval_ms: int) -> None:
        """Let the clock be read, whatever it says."""
        last = make_tick(self._number, stream_time_ms=self._now_ms)
        self._pulse(next_tick(last, wall_clock_ms=wall_clock_ms, interval_ms=interval_ms))

    def _pulse(self, tick: Tick) -> None:
        self._number, self._now_ms = tick.number, tick.stream_time_ms
        changes = tuple(config_changes(self.configs, self._applied))
        self._applied |= {change.place: change.record.config_hash for change in changes}
        self._moved = True
        self._pulses.append(Pulse(make_tick(self._number, stream_time_ms=self._now_ms), changes))
        self.pass_on()

    def pass_on(self) -> bool:
        """Write the ticks that may go on, at once; return whether there were any."""
        if not self._moved:
            return False
        self._moved = False
        reached, moved = self._watermarks.reached, False
        for hop in self._watermarks.hops:
            limit = self._watermarks.limit(hop, self._number)
            for pulse in self._pulses:
                if reached.get(hop.topic.name, -1) < pulse.number <= limit:
                    self._write(hop.topic, pulse)
                    reached[hop.topic.name], moved = pulse.number, True
        done = min(reached.get(hop.topic.name, -1) for hop in self._watermarks.hops)
        self._pulses = [pulse for pulse in self._pulses if pulse.number > done]
        return moved

    def settle(self, cluster: Cluster) -> None:
        """Let everybody work until all ticks are everywhere, and nothing is left to read."""
        cluster.settle()
        while self.pass_on():
            cluster.settle()

    def _note(self, stage: str, partition: int, tick: int, is_busy: bool) -> None:
        self._moved = True
        self._watermarks.note(stage, partition, tick)

    def _write(self, topic: Topic, pulse: Pulse) -> None:
        configs = [_frame(change.record) for change in pulse.changes if change.topic is topic]
        tick = _tick(pulse.number, pulse.tick.stream_time_ms)
        if topic.name in self._stream_ms:
            self._stream_ms[topic.name] = pulse.tick.stream_time_ms
        for partition in range(self._broker.partitions_of(topic)):
            for frame in (*configs, tick):
                self._broker.publish(topic, "tick", frame, partition)

    def remembers(self, event: Any) -> bool:
        """Say whether the stages still know what they made of the first event of an episode, or of an alias.

        What comes after the late horizon begins again, as documented: else they would have to keep every fate for ever.
        It counts in stream time, from that of the stages when the first one came.
        """
        first_ms = self._first_ms.setdefault(event.episode_id or event.alias, min(self._stream_ms.values()))
        return self._now_ms < first_ms + ASSEMBLY.late_horizon_ms

    def command(self, name: Any) -> None:
        """Put an operator's command into the run's log, twice, as a retried one may be."""
        self._commands += 1
        command = make_command(name, key=str(self._commands))
        for _ in range(2):
            self._broker.publish(RUN_LOG, "main", encode(command))


def _publish(chance: random.Random, broker: Broker, event: Any, data: bytes) -> None:
    """Write an event, now and then twice, and sometimes with something unreadable or misplaced."""
    topic, key = (EPISODE_EVENTS, event.root_episode_id)
    if not event.episode_id or isinstance(event, AliasDeclared):
        topic, key = ALIASES, event.alias
    if topic is EPISODE_EVENTS and chance.random() < 0.05:
        broker.publish(topic, key, data)
    broker.publish(topic, key, data)
    if chance.random() < 0.03:
        broker.publish(topic, key, chance.choice(_POISON))


def _disturb(chance: random.Random, cluster: Cluster, clock: SimulatedTicker, calm: bool) -> None:
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


def _events(chance: random.Random, calm: bool) -> Iterator[SentRecord]:
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
def _episode(group: int, attempt: int, size: int, reward: float | None) -> tuple[SentRecord, ...]:
    start = {"group_id": f"g{group}", "group_size": size, "example_id": None}
    events = make_episode(f"e{group}-{attempt}", reward=reward, start=start)
    return tuple((event, encode(event)) for event in events)


@cache
def _late(name: str, kind: str) -> SentRecord:
    event = make_reward(name, 7.0, key="late", writer="feedback") if kind == "reward" else make_excluded(name)
    return event, encode(event)


@cache
def _by_alias(name: str, declared: bool) -> tuple[SentRecord, ...]:
    events = [make_alias_reward(f"order {name}", 0.5), *[make_alias(f"order {name}", name)] * declared]
    return tuple((event, encode(event)) for event in events)


@cache
def _tick(number: int, now_ms: int) -> bytes:
    return encode(make_tick(number, stream_time_ms=now_ms))


@cache
def _frame(record: ConfigApplied) -> bytes:
    return encode(record)


@cache
def _configs(main: int, others: int) -> tuple[ConfigApplied, ...]:
    applied = [make_config("assembly", ASSEMBLY), make_config("scoring", ScoringConfig())]
    for run in (MAIN[main], OTHER_RUN)[: 1 + others]:
        judging = ("group-scoring",) * bool(run.grouping.rewards)
        applied += [make_config(stage, run, run_id=run.run_id) for stage in ("grouping", *judging, "curriculum")]
    return tuple(applied)


@cache
def _stages(main: int, others: int) -> tuple[tuple[RunConfig, ...], list[AnyStage]]:
    runs = (MAIN[main], OTHER_RUN)[: 1 + others]
    stages = namespace_stages(ASSEMBLY, ScoringConfig(), registry=REGISTRY)
    stages += [stage for run in runs for stage in run_stages(run, registry=REGISTRY)]
    return runs, [*stages, PureAsEffects(SimulatedTrainer())]
