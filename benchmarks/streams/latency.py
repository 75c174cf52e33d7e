"""How long from the last event of an explicit group until a committed reader has its Group, and each stage's share.

python -m benchmarks.streams.latency [seconds] [settings as JSON]

At 300 events a second, and at half load: half of what the three stages in one process sustain with the traffic arriving
all the while, which is measured first. How fast they work off a backlog says less: then nobody sends, and on a machine
that all share the worker has what the sender will take.
"""

import asyncio
import itertools
import json
import math
import random
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from benchmarks.common import Verdict, at_most, broker, reported
from benchmarks.streams.events import EVENTS, episode
from benchmarks.streams.load import settings
from benchmarks.streams.pipeline import make_stages, start_worker
from rollbus.producers.sending.kafka_sink import LINGER_MS, MAX_BATCH_BYTES
from rollbus.runtime.kafka.writing import Row, partition_of, write
from rollbus.schemas.codec import decode
from rollbus.schemas.ids import trajectory_id
from rollbus.schemas.records.groups import Group
from rollbus.schemas.records.trajectories import Score, Trajectory
from rollbus.schemas.topics import EPISODE_EVENTS, RUN_LOG, SCORES, TRAJECTORIES
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics_on_broker import ensure_topics

RATE = 300
TARGET_MS = 450
"""Of the 99th percentile, through all three stages."""
MEMBERS = 4
SLOTS = 16
"""Groups under way at a time."""
CAPACITY_EVENTS = 40_000
GROUPS_AHEAD = 200
"""Sent and not yet read back, while the capacity is measured: about 6,400 events, more than the stages have in hand."""
SETTLE_S = 2.0
"""Of the measurement's beginning, when connections are made and code is warm for the first time."""
PATIENCE_S = 20.0
STEPS = ("assembly", "scoring", "grouping")


@dataclass(frozen=True, slots=True)
class Sent:
    """One event to send; the last one of a group names it."""

    key: bytes
    value: bytes
    ends: str | None


@dataclass(slots=True)
class Times:
    """When the last event of a group was sent, and when its records could be read."""

    sent: float
    seen: dict[str, float] = field(default_factory=dict)


def traffic(chance: random.Random) -> Iterator[Sent]:
    """Yield events for ever: of several groups at a time, in random turns, the members of each side by side.

    They begin one after the other, so that later they do not end at the same time.
    """
    slots: list[deque[Sent]] = []
    number = 0
    for sent in itertools.count():
        if len(slots) < SLOTS and sent % (MEMBERS * EVENTS) == 0:
            slots.append(deque())
        slot = chance.choice(slots)
        if not slot:
            slot.extend(_group(number, chance))
            number += 1
        yield slot.popleft()


def _group(number: int, chance: random.Random) -> list[Sent]:
    name = f"group-{number}"
    members = [number * MEMBERS + place for place in range(MEMBERS)]
    events = [
        episode(member, chance, group_id=name, group_size=MEMBERS, reward=float(member % 2)) for member in members
    ]
    sent = [
        Sent(f"episode-{member}".encode(), event, None)
        for turn in zip(*events, strict=True)
        for member, event in zip(members, turn, strict=True)
    ]
    return [*sent[:-1], Sent(sent[-1].key, sent[-1].value, name)]


class Reader:
    """Follows the three stages' output, and notes when each group's records can be read."""

    def __init__(self, stream_settings: StreamSettings) -> None:
        topics = (TRAJECTORIES, SCORES, RUN_LOG)
        self._step = {
            topic.full_name(stream_settings.namespace): step for topic, step in zip(topics, STEPS, strict=True)
        }
        self._consumer = AIOKafkaConsumer(
            *self._step,
            **stream_settings.kafka.client_options(),
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        self.groups: dict[str, Times] = {}
        self.of_last: dict[str, str] = {}
        """The group whose last member a trajectory is."""
        self.complete = 0

    async def run(self) -> None:
        """Read until cancelled."""
        await self._consumer.start()
        try:
            while True:
                fetched = await self._consumer.getmany(timeout_ms=1000)
                now = time.monotonic()
                for place, records in fetched.items():
                    for record in records:
                        self._note(self._step[place.topic], decode(record.value), now)
        finally:
            await self._consumer.stop()

    def _note(self, step: str, record: Any, now: float) -> None:
        if isinstance(record, Group):
            self.complete += 1
            name = record.group_key.removeprefix("group:")
        elif isinstance(record, Trajectory | Score):
            name = self.of_last.get(record.trajectory_id, "")
        else:
            return
        if name in self.groups:
            self.groups[name].seen[step] = now


async def send(stream_settings: StreamSettings, events: list[Sent], reader: Reader, rate: float) -> int:
    """Send at a steady rate, or with `math.inf` whenever few groups are ahead; return how many groups ended.

    All that became due within the recorder's linger goes together, as its producer sends it. An event counts from
    when it was due, so a sender that falls behind is measured too.
    """
    options = stream_settings.kafka.client_options()
    producer = AIOKafkaProducer(
        **options, enable_idempotence=True, compression_type="zstd", max_batch_size=MAX_BATCH_BYTES
    )
    topic, partitions = EPISODE_EVENTS.full_name(stream_settings.namespace), stream_settings.event_partitions
    await producer.start()
    began, count, ended = time.monotonic(), 0, 0
    try:
        while count < len(events):
            now = time.monotonic()
            due = int((now - began) * rate) + 1 if rate < math.inf else _due(count, ended, reader)
            for number, event in enumerate(events[count:due], count):
                if event.ends is not None:
                    ended += 1
                    reader.groups[event.ends] = Times(began + number / rate if rate < math.inf else now)
                    reader.of_last[trajectory_id(event.key.decode())] = event.ends
            rows = (
                Row(topic, partition_of(event.key, partitions), event.key, event.value) for event in events[count:due]
            )
            await write(producer, rows)
            count = due
            await asyncio.sleep(LINGER_MS / 1000)
    finally:
        await producer.stop()
    return ended


def _due(count: int, ended: int, reader: Reader) -> int:
    """Return up to which event to send now, so that the stages always have enough and never more."""
    return count + max(0, GROUPS_AHEAD - (ended - reader.complete)) * MEMBERS * EVENTS


async def measure(bootstrap_servers: str, rate: float, seconds: float, changes: dict[str, Any]) -> list[Verdict]:
    """Return the latencies at a rate, with the target."""
    stream_settings, events = await prepare(bootstrap_servers, int(rate * seconds), changes)
    reader = Reader(stream_settings)
    async with start_worker(bootstrap_servers, stream_settings.namespace, changes):
        reading = asyncio.create_task(reader.run())
        await until_complete(reader, await send(stream_settings, events, reader, rate))
        reading.cancel()
    return describe(f"{rate:.0f} events/s", reader)


async def measure_capacity(bootstrap_servers: str, changes: dict[str, Any]) -> float:
    """Return the events per second that the three stages sustain."""
    stream_settings, events = await prepare(bootstrap_servers, CAPACITY_EVENTS, changes)
    reader = Reader(stream_settings)
    async with start_worker(bootstrap_servers, stream_settings.namespace, changes):
        began, reading = time.monotonic(), asyncio.create_task(reader.run())
        await until_complete(reader, await send(stream_settings, events, reader, math.inf))
        took = time.monotonic() - began
        reading.cancel()
    return len(events) / took


async def prepare(bootstrap_servers: str, count: int, changes: dict[str, Any]) -> tuple[StreamSettings, list[Sent]]:
    """Make the topics of a new namespace; return its settings, and events to send."""
    stream_settings = settings(bootstrap_servers, f"latency-{time.time_ns()}.").model_copy(update=changes)
    await ensure_topics(stream_settings, make_stages())
    return stream_settings, list(itertools.islice(traffic(random.Random(1)), count))


async def until_complete(reader: Reader, groups: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while reader.complete < groups:
        if time.monotonic() > deadline:
            sys.exit(f"only {reader.complete} of {groups} groups came within {PATIENCE_S:.0f} s")
        await asyncio.sleep(0.01)


def describe(load: str, reader: Reader) -> list[Verdict]:
    """Return percentiles in ms from the last event of a group: of each stage's share, and of the whole."""
    first = min(times.sent for times in reader.groups.values()) + SETTLE_S
    groups = [times for times in reader.groups.values() if times.sent >= first]
    verdicts = []
    for step in STEPS:
        figures = f"p50 {quantile(groups, step, 0.5):.0f} ms, p99 {quantile(groups, step, 0.99):.0f} ms"
        verdicts.append(reported(f"{load}, {step}", figures))
    middle = f"p50 {quantile(groups, None, 0.5):.0f} ms, of {len(groups)} groups"
    return [*verdicts, at_most(f"{load}, p99 in ms", quantile(groups, None, 0.99), TARGET_MS, middle)]


def quantile(groups: list[Times], step: str | None, share: float) -> float:
    """Return a quantile, in ms, of the whole way or of one stage's part."""
    spans = sorted(_span(times, step) for times in groups)
    return spans[min(len(spans) - 1, int(share * len(spans)))] * 1000


def _span(times: Times, step: str | None) -> float:
    ends = [times.sent, *(times.seen[name] for name in STEPS)]
    if step is None:
        return ends[-1] - ends[0]
    place = STEPS.index(step)
    return ends[place + 1] - ends[place]


async def main(seconds: float, changes: dict[str, Any]) -> None:
    """Measure at the fixed rate, and at half of the capacity."""
    with broker() as running:
        verdicts = await measure(running.bootstrap_servers, RATE, seconds, changes)
        capacity = await measure_capacity(running.bootstrap_servers, changes)
        verdicts.append(reported("events/s that are sustained", f"{capacity:.0f}"))
        verdicts += await measure(running.bootstrap_servers, capacity / 2, seconds, changes)
    print(*verdicts, sep="\n")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    asyncio.run(main(float(arguments[0]) if arguments else 30.0, json.loads(arguments[1]) if arguments[1:] else {}))
