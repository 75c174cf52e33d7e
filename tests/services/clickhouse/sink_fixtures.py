"""A sink with a real broker and ClickHouse's real engine: topics, records, and the wait until all is written."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from rollbus.consumers.clickhouse.questions.saved_questions import ask
from rollbus.consumers.clickhouse.sink.sink import SinkCounters, run_sink_async
from rollbus.consumers.clickhouse.sink.status import read_sink_status
from rollbus.consumers.clickhouse.store.settings import SinkSettings
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.codec import encode
from rollbus.schemas.records.drops import Drop
from rollbus.schemas.topics import TOPICS
from rollbus.streams.kafka import topics_on_broker
from rollbus.streams.kafka.topics import topic_specs
from tests.builders import START_MS
from tests.consumers.story import Record
from tests.services.databases import name_database
from tests.services.streams.fixtures import stream_settings


@pytest.fixture
def sink_settings(kafka: str, clickhouse: tuple[str, int], namespace: str) -> SinkSettings:
    return SinkSettings(
        kafka=KafkaConnection(bootstrap_servers=kafka),
        namespace=namespace,
        clickhouse=name_database(clickhouse, "sink"),
        linger_ms=50,
    )


@asynccontextmanager
async def sink_process(settings: SinkSettings) -> AsyncIterator[asyncio.subprocess.Process]:
    """A sink in a process of its own."""
    program = (
        "import sys; from rollbus.consumers.clickhouse.sink.sink import SinkSettings, run_sink; "
        "run_sink(SinkSettings.model_validate_json(sys.argv[1]))"
    )
    text = settings.model_dump_json(exclude={"clickhouse": {"password"}})
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, text)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def create_topics(settings: SinkSettings) -> None:
    """Make topics in which records keep the times that a test gives them, and stay."""
    stream = stream_settings(settings.kafka.bootstrap_servers, settings.namespace, retention_hours=24 * 365 * 10)
    await topics_on_broker.create_topics(stream, [replace(spec, wished=()) for spec in topic_specs(stream)])


async def send(settings: SinkSettings, records: Iterable[tuple[str, str, bytes]]) -> None:
    async with (
        AIOKafkaProducer(
            bootstrap_servers=settings.kafka.bootstrap_servers,
            transactional_id=f"{settings.namespace}writer",
            max_request_size=1_572_864,
        ) as producer,
        producer.transaction(),
    ):
        for topic, key, value in records:
            await producer.send(settings.namespace + topic, value, key=key.encode())


def encode_records(records: Iterable[Record]) -> list[tuple[str, str, bytes]]:
    return [(topic, key, encode(record)) for topic, key, record in records]


def late_drops(first: int, count: int) -> list[tuple[str, str, bytes]]:
    drops = [
        Drop(unit="event", unit_id=f"late-{n}", reason="late_event", stage="assembly", dropped_at_ms=START_MS)
        for n in range(first, first + count)
    ]
    return encode_records([("drops", drop.unit_id, drop) for drop in drops])


async def run_until_written(settings: SinkSettings) -> SinkCounters:
    """Run a sink until nothing in the log is unwritten, and stop it."""
    stop = asyncio.Event()
    running = asyncio.create_task(run_sink_async(settings, stop=stop))
    try:
        await wait_until_written(settings, running)
    finally:
        stop.set()
        counters = await running
    return counters


async def wait_until_written(settings: SinkSettings, *sinks: "asyncio.Task[Any]") -> None:
    async with asyncio.timeout(120):
        while not await is_written(settings):
            for sink in sinks:
                assert not sink.done(), sink.result()
            await asyncio.sleep(0.3)


async def is_written(settings: SinkSettings) -> bool:
    lags = await read_sink_status(settings)
    return len({lag.topic for lag in lags}) == len(TOPICS) and not sum(lag.lag for lag in lags)


def counts(settings: SinkSettings, *, final: bool = True) -> dict[str, int]:
    """Rows of every table that carries Kafka coordinates."""
    sql = "SELECT table FROM system.columns WHERE database = currentDatabase() AND name = 'kafka_timestamp'"
    tables = [row[0] for row in ask(settings.clickhouse, sql).rows]
    parts = [f"SELECT '{table}', count() FROM {table} {'FINAL' if final else ''}" for table in sorted(tables)]
    return dict(ask(settings.clickhouse, " UNION ALL ".join(parts)).rows)
