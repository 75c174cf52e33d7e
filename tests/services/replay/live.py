"""Live traffic for the replay tests: real workers that are killed, episodes with losses, repeats and late rewards."""

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from aiokafka import TopicPartition

from rollbus.local.process.tether import tethered
from rollbus.runtime.kafka.clients import new_admin, new_consumer, running
from rollbus.runtime.kafka.groups import committed_offsets
from rollbus.schemas.codec import decode, encode, record_name
from rollbus.schemas.records.control import ConfigApplied, Tick
from rollbus.schemas.topics import EPISODE_EVENTS, Topic, topic_of
from rollbus.settings import Settings
from rollbus.settings_file import load_settings
from rollbus.streams.kafka import names
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.pipeline import AnyStage
from tests.builders import make_episode, make_excluded, make_reward
from tests.console import ROLLBUS
from tests.services.commands import write_config
from tests.services.streams.fixtures import places_of, read_places, send, send_to_all
from tests.waiting import until_found

CLOSING_MS = 2_500
"""Stream time: longer than any episode or group of CONFIG stays open after its last event."""
FOR_NOBODY = ConfigApplied(stage="nobody", config_hash="", content="{}")
Frame = tuple[bytes | None, bytes]
SIGNING_SETTINGS = {"owner": "only-for-these-tests"}
"""The section `signing` of the settings."""
CONFIG: dict[str, Any] = {
    "worker": {"event_partitions": 3, "tick_interval_ms": 200, "linger_ms": 0},
    "assembly": {"inactivity_ms": 800},
    "runs": [
        {
            "grouping": {"group_size": 3, "window_ms": 1_200},
            "curriculum": {"mode": "harness", "groups_per_window": 3},
            "batching": {"groups_per_step": 1},
        },
        {
            "run_id": "alone",
            "model": "alone",
            "filter": {"models": ["agent"]},
            "grouping": {"strategy": "single"},
            "batching": {"groups_per_step": 4},
        },
    ],
}


def write_settings(folder: Path, kafka: str, namespace: str, **changes: Any) -> Path:
    """Write the settings file of a test; return its path."""
    return write_config(folder, kafka, namespace, **(CONFIG | changes))


def settings_of(path: Path) -> Settings:
    return load_settings(Settings, path, {})


def traffic(seed: int, episodes: int) -> list[Any]:
    """Events of so many episodes in the order in which they are sent: shuffled a little, some lost, some twice."""
    chance = random.Random(seed)
    events: list[tuple[float, Any]] = []
    for number in range(episodes):
        name, problem = f"e{number}", number // 3
        start = {"example_id": f"x{problem}"} if problem % 2 else {"group_id": f"g{problem}", "group_size": 3}
        reward = None if chance.random() < 0.1 else round(chance.random(), 3)
        for event in make_episode(name, reward=reward, turns=chance.randint(1, 3), start=start):
            if chance.random() > 0.01:
                events.append((number + chance.random() * 2, event))
            if chance.random() < 0.02:
                events.append((number + chance.random() * 6, event))
        if chance.random() < 0.2:
            late = make_reward(name, round(chance.random(), 3), key="late", writer="feedback")
            events.append((number + 10 + chance.random() * 10, late))
        if chance.random() < 0.05:
            events.append((number + chance.random() * 12, make_excluded(name)))
    return [event for _, event in sorted(events, key=lambda pair: pair[0])]


async def publish(settings: StreamSettings, events: Sequence[Any], *, chunks: int, pause_s: float) -> None:
    """Send the events in so many portions."""
    size = -(-len(events) // chunks)
    for first in range(0, len(events), size):
        items = [(event.root_episode_id.encode(), encode(event)) for event in events[first : first + size]]
        await send(settings, EPISODE_EVENTS.name, items)
        await asyncio.sleep(pause_s)


class CommandWorker:
    """`rollbus worker run` in a process of its own."""

    def __init__(self, settings: Path, log: Path) -> None:
        self._settings, self.log = settings, log
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *tethered(), ROLLBUS, "--config", str(self._settings), "worker", "run",
                stdout=log, stderr=log, cwd=self.log.parent, env={**os.environ, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip

    async def kill(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()


@asynccontextmanager
async def workers(settings: Path, folder: Path, count: int) -> AsyncIterator[list[CommandWorker]]:
    """So many workers; killed at the end."""
    running_workers = [CommandWorker(settings, folder / f"worker-{number}.log") for number in range(count)]
    try:
        for worker in running_workers:
            await worker.start()
        yield running_workers
    finally:
        for worker in running_workers:
            await worker.kill()


async def frames(settings: StreamSettings, topic: str) -> dict[int, list[Frame]]:
    """Return the committed frames of a topic of the namespace, by partition."""
    records_by_place = await read_places(settings.kafka, places_of(settings, topic_of(topic)))
    return {
        place.partition: [(record.key, record.value) for record in records]
        for place, records in records_by_place.items()
    }


async def records(settings: StreamSettings, topic: str) -> list[Any]:
    """Return the decoded data records of a topic, without ticks and configurations."""
    frames_by_partition = await frames(settings, topic)
    decoded = [
        decode(value) for partition in sorted(frames_by_partition) for _, value in frames_by_partition[partition]
    ]
    return [record for record in decoded if not isinstance(record, Tick | ConfigApplied)]


async def until_settled(settings: StreamSettings, stages: Sequence[AnyStage], topics: Sequence[str]) -> None:
    """Wait until live has read past everything that time had to close, and has nothing more to say.

    Silence alone proves nothing: a killed worker's partitions are silent too until the group notices. A worker need not
    commit at once what is nothing but time, so a record that is more than time asks it to: a configuration for nobody.
    """
    stages = [stage for stage in stages if ConfigApplied in stage.input.records]  # not aliases: none are sent
    async with asyncio.timeout(400):
        while True:
            before = await _counts(settings, topics)
            end_ms = await _stream_time_ms(settings, EPISODE_EVENTS) + CLOSING_MS
            for topic in dict.fromkeys(stage.input for stage in stages):  # time comes to the later ones later
                look = partial(_stream_time_ms, settings, topic)
                await until_found(look, f"no tick comes into {topic.name}", is_enough=end_ms.__le__)
            await send_to_all(settings, *{stage.input for stage in stages}, data=encode(FOR_NOBODY))
            await _until_read(settings, stages)
            if await _counts(settings, topics) == before:
                return


async def _stream_time_ms(settings: StreamSettings, topic: Topic) -> int:
    """Return the time of the newest tick in an input; wait for the first one."""
    while True:
        values = [value for _, value in (await frames(settings, topic.name))[0]]
        if ticks := [decode(value) for value in values if record_name(value) == Tick.__name__]:
            return int(ticks[-1].stream_time_ms)
        await asyncio.sleep(0.1)


async def _counts(settings: StreamSettings, topics: Sequence[str]) -> Counter[str]:
    return Counter({topic: len(await records(settings, topic)) for topic in topics})


async def _until_read(settings: StreamSettings, stages: Sequence[AnyStage]) -> None:
    """Wait until each stage has committed what its input holds now; ticks go on, so its end moves on too."""
    consumer, admin = new_consumer(settings.kafka), new_admin(settings.kafka)
    async with running(settings.kafka, consumer), running(settings.kafka, admin):
        inputs = {names.group_id(settings.namespace, stage.name): places_of(settings, stage.input) for stage in stages}
        ends = {group: await consumer.end_offsets(places) for group, places in inputs.items()}
        for group, end_offsets in ends.items():
            look, is_enough = partial(committed_offsets, admin, group), partial(_has_reached, end_offsets)
            await until_found(look, f"{group} does not get to the end", is_enough=is_enough)


def _has_reached(ends: dict[TopicPartition, int], committed: Any) -> bool:
    return all(place in committed and committed[place].offset >= end for place, end in ends.items())
