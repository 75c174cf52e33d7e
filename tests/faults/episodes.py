"""The real stages, traffic whose outcome is known beforehand, and the check that every trajectory has one fate."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from rollbus.schemas.codec import decode, encode
from rollbus.schemas.ids import trajectory_id
from rollbus.schemas.records.config import (
    AssemblyConfig,
    BatchingConfig,
    CurriculumConfig,
    GroupingConfig,
    RunConfig,
    ScoringConfig,
)
from rollbus.schemas.records.control import ConfigApplied
from rollbus.schemas.records.groups import Group
from rollbus.schemas.topics import BATCHES, DROPS, EPISODE_EVENTS, RUN_LOG, TRAJECTORIES, Topic
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.pipeline import AnyStage, namespace_stages, run_stages
from rollbus.streams.state.ticker import config_applied
from tests.builders import make_episode
from tests.faults.log_contents import LogContents, read_everything
from tests.faults.oracle import Pair, check_log
from tests.flow.reference import expect
from tests.services.streams.fixtures import read_topic
from tests.waiting import until_found

SIZE = 3
"""Episodes of a group."""
WINDOW_MS = 6_000
RUN = RunConfig(
    grouping=GroupingConfig(group_size=SIZE),
    curriculum=CurriculumConfig(groups_per_window=1),
    batching=BatchingConfig(groups_per_step=1, batches_ahead=100_000),
)
"""Every group that closes becomes a batch at once: nothing is pending in the end."""
WINDOWED_RUN = RUN.model_copy(update={"grouping": GroupingConfig(group_size=SIZE, window_ms=WINDOW_MS)})


def pipeline() -> list[AnyStage]:
    """Return the stages from events to batches."""
    return namespace_stages(AssemblyConfig(), ScoringConfig()) + run_stages(RUN)


def windowed_stages() -> list[AnyStage]:
    """Return them with a window that is shorter than a lag, and longer than a broker needs for a group's events."""
    return namespace_stages(AssemblyConfig(), ScoringConfig()) + run_stages(WINDOWED_RUN)


def windowed_configs() -> list[ConfigApplied]:
    """Return their configurations: time waits for the stages that these name."""
    return [
        config_applied("assembly", None, AssemblyConfig()),
        config_applied("scoring", None, ScoringConfig()),
        *(config_applied(stage, WINDOWED_RUN.run_id, WINDOWED_RUN) for stage in ("grouping", "curriculum")),
    ]


def group_events(group: int, *, turns: int = 2, at_ms: int = 0) -> list[Any]:
    """All events of an explicit group, the episodes side by side; `at_ms` shifts the producer's clock."""
    start = {"group_id": f"g{group}", "group_size": SIZE, "example_id": None}
    episodes = [
        make_episode(f"e{group}-{number}", reward=float(number), turns=turns, start=start) for number in range(SIZE)
    ]
    return [_shift_event(event, at_ms) for events in zip(*episodes, strict=True) for event in events]


def numbers_until(enough: asyncio.Event, *, start: int = 0) -> Iterator[int]:
    """Yield one number after another: traffic for as long as a test needs it, however fast the machine is."""
    for number in count(start):
        if enough.is_set():
            return
        yield number


def _shift_event(event: Any, at_ms: int) -> Any:
    started_ms = event.episode_started_at_ms + at_ms
    return replace(event, occurred_at_ms=event.occurred_at_ms + at_ms, episode_started_at_ms=started_ms)


class Traffic:
    """Sends groups of episodes, each acknowledged before the next, and remembers them."""

    def __init__(self, settings: StreamSettings) -> None:
        self.settings = settings
        self.events: list[Any] = []
        self.published: list[tuple[Topic, Pair]] = []

    async def send(self, groups: Iterable[int], *, pause_s: float = 0.0, turns: int = 2, at_ms: int = 0) -> None:
        """Send some groups, by a clock that is wrong by `at_ms`; returns once the broker has them all."""
        producer = AIOKafkaProducer(**self.settings.kafka.client_options(), enable_idempotence=True, linger_ms=5)
        await producer.start()
        try:
            for group in groups:
                events = group_events(group, turns=turns, at_ms=at_ms)
                pairs = [(event.root_episode_id.encode(), encode(event)) for event in events]
                topic = EPISODE_EVENTS.full_name(self.settings.namespace)
                now_ms = int(time.time() * 1000) + at_ms
                for future in [await producer.send(topic, value, key=key, timestamp_ms=now_ms) for key, value in pairs]:
                    await future
                self.events += events
                self.published += [(EPISODE_EVENTS, pair) for pair in pairs]
                await asyncio.sleep(pause_s)
        finally:
            await producer.stop()

    async def until_trained(self) -> None:
        """Wait until each trajectory is in a batch or dropped."""
        trajectory_ids = {trajectory_id(event.episode_id) for event in self.events}
        look = partial(_fates, self.settings)
        await until_found(look, "not every trajectory has a fate", is_enough=trajectory_ids.issubset, every_s=0.5)

    async def check(self, stages: Callable[[], list[AnyStage]] = pipeline) -> LogContents:
        """Read the log and raise AssertionError unless all of it is as it must be; only once no worker runs."""
        contents = await read_everything(self.settings, stages())
        await check_log(contents, stages(), self.published)
        check_fates(contents, self.events)
        return contents


async def _fates(settings: StreamSettings) -> set[str]:
    batches = await read_topic(settings, BATCHES.name, 1)
    drops = await read_topic(settings, DROPS.name)
    trained = {member.trajectory_id for batch in batches for group in batch.groups for member in group.members}
    return trained | {name for drop in drops for name in drop.trajectory_ids}


def check_fates(contents: LogContents, events: Sequence[Any]) -> None:
    """Trajectories and groups are what follows from all events at once; each trajectory is in one batch."""
    expected = expect(events)
    records = {
        topic: [decode(entry.value) for entry in contents.of(topic)] for topic in (TRAJECTORIES, RUN_LOG, BATCHES)
    }
    emitted = Counter(record.trajectory_id for record in records[TRAJECTORIES] if type(record).__name__ == "Trajectory")
    assert emitted == Counter(expected.trajectories), "trajectories"
    groups: Any = {
        group.group_key.removeprefix("group:"): {
            member.trajectory_id: (member.reward, pytest.approx(member.advantage)) for member in group.members
        }
        for group in records[RUN_LOG]
        if isinstance(group, Group)
    }
    differing = [name for name in groups.keys() | expected.groups if groups.get(name) != expected.groups.get(name)]
    assert groups == expected.groups, f"groups {sorted(differing)}: {[groups.get(name) for name in sorted(differing)]}"
    trained = Counter(
        member.trajectory_id for batch in records[BATCHES] for group in batch.groups for member in group.members
    )
    drops = [decode(entry.value) for entry in contents.of(DROPS)]
    dropped = Counter(name for drop in drops for name in drop.trajectory_ids)
    assert trained + dropped == emitted, "emitted = trained + dropped does not hold"
    assert [batch.number for batch in records[BATCHES]] == list(range(len(records[BATCHES])))
