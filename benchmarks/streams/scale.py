"""What a worker can hold and how it scales: two workers beside one, ten times the open episodes, memory, restoring.

python -m benchmarks.streams.scale [episodes]

A rate is that of the trajectories between the first tenth and the last, by the time at which they were written: what
starting and stopping take is not in it. Workers, broker and the reader of the result share this machine's cores, so a
rate of two workers says as much about the cores as about the workers. What carries over to other machines is the
processor time per event, of each of them: it is the same for two workers as for one where sharing costs nothing.
"""

import asyncio
import gc
import os
import random
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass

from aiokafka import AIOKafkaConsumer, TopicPartition

from benchmarks.streams.broker import Broker, broker
from benchmarks.streams.events import EVENTS, NOWHERE, episode
from benchmarks.streams.load import AT_ONCE, load
from benchmarks.streams.pipeline import resident_bytes
from benchmarks.streams.worker_process import a_worker
from rollbus.schemas.codec import decode, encode
from rollbus.schemas.records.config import AssemblyConfig, RunConfig, ScoringConfig
from rollbus.schemas.records.control import Tick
from rollbus.schemas.topics import TRAJECTORIES
from rollbus.streams.stages.assembly.stage import AssemblyStage
from rollbus.streams.stages.grouping.stage import GroupingStage
from rollbus.streams.stages.scoring.answers import ComponentAnswer
from rollbus.streams.stages.scoring.stage import ScoringStage
from rollbus.streams.state.stage import Incoming, Outgoing

PARTITIONS = 4
NO_TICKS = {"tick_interval_ms": 3_600_000}
OPEN_EVENTS = 3
"""Events of an open episode where memory and restoring are measured: its start and two turns, 9 kB."""
GROUPS = 5_000
PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast a backlog was assembled, and what it took."""

    per_s: float
    worker_us: float
    """Processor time per event, of all workers together; from when the last was open to the last trajectory."""
    broker_us: float
    reader_us: float

    @property
    def needs(self) -> float:
        """Cores that this rate keeps busy."""
        return self.per_s * (self.worker_us + self.broker_us + self.reader_us) / 1e6

    def __str__(self) -> str:
        """Say it in one line."""
        return (
            f"{self.per_s:.0f} events/s; processor time per event: workers {self.worker_us:.0f} µs, "
            f"broker {self.broker_us:.0f} µs, reader {self.reader_us:.0f} µs"
        )


async def rate(running: Broker, episodes: int, *, workers: int = 1, at_once: int = AT_ONCE) -> Rate:
    """Measure how workers assemble a backlog."""
    namespace, servers = f"scale-{time.time_ns()}.", running.bootstrap_servers
    await load(servers, namespace, episodes, at_once=at_once)
    async with AsyncExitStack() as stack:
        before = running.cpu_seconds(), time.process_time()
        reading = asyncio.create_task(_written(servers, namespace, episodes))
        joining = (
            stack.enter_async_context(a_worker(servers, namespace, NO_TICKS, ("assembly",))) for _ in range(workers)
        )
        done = await asyncio.gather(*joining)
        times = sorted(await asyncio.wait_for(reading, PATIENCE_S))
        broker_s, reader_s = running.cpu_seconds() - before[0], time.process_time() - before[1]
    tenth, events = len(times) // 10, episodes * EVENTS
    per_s = (len(times) - 2 * tenth) * EVENTS / ((times[-tenth - 1] - times[tenth]) / 1000)
    cpu_s = sum(worker["cpu_seconds"] for worker in done)
    return Rate(per_s, *(seconds / events * 1e6 for seconds in (cpu_s, broker_s, reader_s)))


def two_beside_one(one_worker: Rate, two_workers: Rate, cores: int) -> str:
    """Say what a second worker cost and gave, and whether this machine could show more."""
    most = cores / (one_worker.worker_us + one_worker.broker_us + one_worker.reader_us) * 1e6
    report_lines = [
        f"two workers take {two_workers.worker_us / one_worker.worker_us:.2f} times the processor time per event "
        f"of one, and run {two_workers.per_s / one_worker.per_s:.2f} times as fast",
        f"  one worker with its broker and reader kept {one_worker.needs:.1f} of {cores} cores busy, "
        f"two {two_workers.needs:.1f}; {cores} cores can give {most:.0f} events/s, "
        f"{most / one_worker.per_s:.2f} times one worker, however many workers",
    ]
    return "\n".join(report_lines)


async def _written(bootstrap_servers: str, namespace: str, expected: int) -> list[int]:
    """Return the times at which the expected number of trajectories were written."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap_servers, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    await consumer.start()
    consumer.assign([TopicPartition(TRAJECTORIES.full_name(namespace), number) for number in range(PARTITIONS)])
    times: list[int] = []
    try:
        while len(times) < expected:
            for records in (await consumer.getmany(timeout_ms=500)).values():
                times += [record.timestamp for record in records]
    finally:
        await consumer.stop()
    return times


async def restoring(bootstrap_servers: str, episodes: int) -> None:
    """Print what a second worker takes to open partitions that hold so many open episodes, and in which memory."""
    empty, opened, _ = await _open_twice(bootstrap_servers, episodes)
    took, none_s = opened["open_s"], empty["open_s"]
    memory = (opened["resident_bytes"] - empty["resident_bytes"]) / episodes
    print(
        f"restoring {episodes} open episodes of {OPEN_EVENTS} events: {took:.1f} s, of which {none_s:.1f} s for none;"
    )
    print(f"  {(took - none_s) * 100_000 / episodes:.1f} s per 100,000; {memory / 1000:.1f} kB of memory each")


async def measure_restoring(bootstrap_servers: str, episodes: int) -> float:
    """Return the seconds that a row of open episodes takes to be restored."""
    empty, opened, rows = await _open_twice(bootstrap_servers, episodes)
    return float(max(0.0, opened["open_s"] - empty["open_s"]) / rows)


async def _open_twice(bootstrap_servers: str, episodes: int) -> tuple[dict[str, float], dict[str, float], float]:
    """Return how a worker opened empty partitions, how the next one opened full ones, and how many rows it restored."""
    namespace, stages = f"scale-{time.time_ns()}.", ("assembly",)
    records, _ = await load(bootstrap_servers, namespace, episodes, most_events=OPEN_EVENTS, at_once=episodes)
    async with a_worker(bootstrap_servers, namespace, NO_TICKS, stages) as first:
        await _until_committed(bootstrap_servers, namespace, records)
    async with a_worker(bootstrap_servers, namespace, NO_TICKS, stages) as second:
        pass
    return first["opened"], second["opened"], second["assembly"]["restored_rows"]


async def _until_committed(bootstrap_servers: str, namespace: str, records: int) -> None:
    """Wait until the assembly group's offsets say that all events are taken in."""
    group, topic = f"{namespace}assembly", f"{namespace}episode-events"
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap_servers, group_id=group, enable_auto_commit=False)
    await consumer.start()
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    consumer.assign(places)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while sum([await consumer.committed(place) or 0 for place in places]) < records:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
    finally:
        await consumer.stop()


def memory_of_groups() -> float:
    """Return the bytes that an open group of eight members holds, one of them missing."""
    assembly, chance = AssemblyStage(AssemblyConfig()), random.Random(1)
    scoring, grouping = ScoringStage(ScoringConfig(), keep_ms=0), GroupingStage(RunConfig())
    scores: list[Outgoing] = []
    for number in range(GROUPS * 7):
        group = f"group-{number // 7}"
        assembled, outputs = assembly.new_state(), list[Outgoing]()
        for event in episode(number, chance, group_id=group, group_size=8):
            outputs += assembly.step(assembled, Incoming(decode(event), "", NOWHERE, event))
        incoming = Incoming(outputs[0].record, group, NOWHERE, b"")
        scores += scoring.step(scoring.new_state(), incoming, {"reward": ComponentAnswer(1.0)})
    data = [encode(score.record) for score in scores]
    del scores
    gc.collect()
    state, before = grouping.new_state(), resident_bytes()
    tick = Tick(number=0, stream_time_ms=1, wall_clock_ms=1, interval_ms=1_000)
    list(grouping.step(state, Incoming(tick, "", NOWHERE, b"")))
    for trajectory_bytes in data:
        copied_bytes = bytes(bytearray(trajectory_bytes))
        list(grouping.step(state, Incoming(decode(copied_bytes), "", NOWHERE, copied_bytes)))
    list(state.drain())
    gc.collect()
    return (resident_bytes() - before) / GROUPS


async def main(episodes: int) -> None:
    """Print all figures."""
    print(f"an open group of 8 with 7 members: {memory_of_groups() / 1000:.1f} kB of memory")
    with broker() as running:
        one_worker = await rate(running, episodes)
        print(f"one worker: {one_worker}")
        two_workers = await rate(running, episodes, workers=2)
        print(f"two workers: {two_workers}")
        print(two_beside_one(one_worker, two_workers, len(os.sched_getaffinity(0))))
        crowded = await rate(running, episodes, at_once=10 * AT_ONCE)
        slower = crowded.worker_us / one_worker.worker_us
        print(f"one worker, ten times the open episodes: {crowded}")
        print(
            f"  {crowded.per_s / one_worker.per_s:.2f} times as fast, "
            f"{slower:.2f} times the workers' processor time per event"
        )
        await restoring(running.bootstrap_servers, 2 * episodes)
    print("all of this is reported; no target is set for it")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))
