"""A log in Kafka → rows per second of the sink, compared with bare inserts of the same blocks.

The sink's time is the whole path: from the poll that brings its first records to the commit of its last offsets. Bare
is one insert after the other by the same client, of blocks whose columns were made before: encoding, sending, waiting.
"""

import asyncio
import statistics
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from benchmarks.common import at_least
from rollbus.consumers.clickhouse.sink.kafka_log import KafkaSinkLog
from rollbus.consumers.clickhouse.sink.ranges import PartitionBuffer
from rollbus.consumers.clickhouse.store.client import ClickHouse, Insert
from rollbus.consumers.clickhouse.store.fills import Filled
from rollbus.consumers.clickhouse.store.migrator import migrate
from rollbus.consumers.clickhouse.store.origin import Row
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings, SinkSettings
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.codec import encode
from rollbus.schemas.topics import TOPICS
from rollbus.stack_settings import HOST
from tests.builders import make_episode

EPISODES = 40_000
"""Eight events each, 760,000 rows: fifteen times what the sink buffers, so that its first reading and its last insert,
which nothing overlaps, weigh little, as in a sink that runs for days."""
PARTITIONS = 4
TARGET = 0.8
TIMEOUT_S = 300

SINK = """
import sys, time
from rollbus.consumers.clickhouse.sink.sink import run_sink
from rollbus.consumers.clickhouse.store.settings import SinkSettings
from rollbus.consumers.clickhouse.sink.kafka_source import KafkaSinkSource

poll, commit = KafkaSinkSource.poll, KafkaSinkSource.commit
committed = {}
seen = []

async def timed_poll(self, timeout_s):
    began = time.perf_counter(), time.process_time()
    fetched = await poll(self, timeout_s)
    if fetched.records and not seen:
        seen.append(True)
        print("began", *began, 0, flush=True)
    return fetched

async def timed_commit(self, positions):
    done = await commit(self, positions)
    committed.update((place, position.committed.offset) for place, position in positions.items())
    print("committed", time.perf_counter(), time.process_time(), sum(committed.values()), flush=True)
    return done

KafkaSinkSource.poll, KafkaSinkSource.commit = timed_poll, timed_commit
run_sink(SinkSettings.model_validate_json(sys.argv[1]))
"""


@dataclass(slots=True)
class PreparedRows(Filled):
    """Rows whose columns are there already."""

    arrays: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def columns(self) -> dict[str, Sequence[Any]]:
        """Return them."""
        return dict(self.arrays)


@dataclass(frozen=True, slots=True)
class Took:
    """What one variant needed, of the clock and of this side's processor."""

    seconds: float
    cpu_s: float


async def compare_sink(bootstrap_servers: str, port: int, rounds: int) -> None:
    """Print rows per second of the sink and of bare inserts, in turn, and the ratio with its target."""
    ratios, variants = [], ("bare", "sink")
    for number in range(rounds):
        settings = sink_settings(bootstrap_servers, port, f"bench-{number}.")
        await fill_log(settings, number)
        blocks = await blocks_of(settings)
        rows, took = sum(len(block.rows) for block in blocks), dict[str, Took]()
        for variant in variants if number % 2 else reversed(variants):
            used = sink_settings(bootstrap_servers, port, settings.namespace)
            migrate(used.clickhouse)
            took[variant] = await timed_sink(used) if variant == "sink" else timed_bare(used.clickhouse, blocks)
        ratios.append(took["bare"].seconds / took["sink"].seconds)
        for variant in variants:
            seconds, cpu_s = took[variant].seconds, took[variant].cpu_s
            costs = f"{rows / seconds:.0f} rows/s, {cpu_s / rows * 1e6:.1f} CPU µs a row on this side"
            print(f"  round {number}, {variant}: {costs} ({rows} rows in {len(blocks)} blocks)", flush=True)
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    print(at_least("sink × bare inserts of the same blocks", statistics.median(ratios), TARGET, spread))


def sink_settings(bootstrap_servers: str, port: int, namespace: str) -> SinkSettings:
    """Return a sink into a database of its own."""
    database = ClickHouseSettings(host=HOST, port=port, database=f"bench_{uuid.uuid4().hex[:8]}", timeout_s=TIMEOUT_S)
    return SinkSettings(
        kafka=KafkaConnection(bootstrap_servers=bootstrap_servers), namespace=namespace, clickhouse=database
    )


async def fill_log(settings: SinkSettings, seed: int) -> None:
    """Write episodes of four turns into the topics of a namespace."""
    servers = settings.kafka.bootstrap_servers
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    names = [
        NewTopic(topic.full_name(settings.namespace), PARTITIONS if topic.partitions == "events" else 1, 1)
        for topic in TOPICS
    ]
    await admin.create_topics(names)
    await admin.close()
    producer = AIOKafkaProducer(bootstrap_servers=servers, linger_ms=50)
    await producer.start()
    topic = f"{settings.namespace}episode-events"
    for number in range(EPISODES):
        name = f"{seed}-{number}"
        for event in make_episode(name, turns=4):
            await producer.send(topic, encode(event), key=name.encode())
    await producer.stop()


async def blocks_of(settings: SinkSettings) -> list[Insert]:
    """Return the inserts that a sink makes of the log, partition by partition."""
    blocks: list[Insert] = []
    async with KafkaSinkLog(settings.kafka, settings.namespace) as log:
        for (topic, number), span in (await log.spans(["episode-events"])).items():
            buffer = PartitionBuffer(namespace=settings.namespace, topic=topic, partition=number, start=span.begin)
            async for records in log.read((topic, number), span):
                for record in records:
                    buffer.add(record)
                if buffer.rows * PARTITIONS >= settings.max_rows:
                    blocks += cut(buffer)
            blocks += cut(buffer)
    return blocks


def cut(buffer: PartitionBuffer) -> list[Insert]:
    """Return a range's inserts, their columns made."""
    cut_rows = buffer.cut()
    return [] if cut_rows is None else [Insert(table, ready(rows)) for table, rows in cut_rows.tables.items()]


def ready(rows: Sequence[Row]) -> Sequence[Row]:
    """Return such rows with their columns made."""
    if not isinstance(rows, Filled):
        return rows
    return PreparedRows(rows.fill, rows.place, rows.records, rows.offsets, rows.timestamps, arrays=rows.columns())


def timed_bare(settings: ClickHouseSettings, blocks: Sequence[Insert]) -> Took:
    """Return how long the inserts alone take."""
    client = ClickHouse(settings)
    began, cpu = time.perf_counter(), time.process_time()
    for block in blocks:
        client.send(client.encoding(block)())
    took = Took(time.perf_counter() - began, time.process_time() - cpu)
    client.close()
    return took


async def timed_sink(settings: SinkSettings) -> Took:
    """Return how long a sink in a process of its own takes for the whole log."""
    text = settings.model_dump_json(exclude={"clickhouse": {"password"}})
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", SINK, text, stdout=asyncio.subprocess.PIPE)
    began = cpu = 0.0
    try:
        assert process.stdout is not None
        async with asyncio.timeout(TIMEOUT_S):
            async for line in process.stdout:
                what, clock, processor, offsets = line.split()
                if what == b"began":
                    began, cpu = float(clock), float(processor)
                elif int(offsets) >= EPISODES * 8:
                    return Took(float(clock) - began, float(processor) - cpu)
        raise SystemExit("the sink ended before it had written the log")
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
