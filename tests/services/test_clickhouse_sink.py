"""The sink against a real broker and ClickHouse's real engine."""

import asyncio
import uuid
from collections.abc import Iterable
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from rollbus.consumers.clickhouse import ClickHouseSettings, SinkSettings, ask, run_sink_async
from rollbus.consumers.clickhouse.kafka_status import sink_status_async
from rollbus.schemas.codec import encode
from rollbus.schemas.topics import TOPICS
from tests.consumers.story import Record, story

pytestmark = pytest.mark.services


@pytest.fixture
def settings(kafka: str, clickhouse: tuple[str, int], namespace: str) -> SinkSettings:
    host, port = clickhouse
    database = f"sink_{uuid.uuid4().hex[:8]}"
    return SinkSettings(
        bootstrap_servers=kafka,
        namespace=namespace,
        clickhouse=ClickHouseSettings(host=host, port=port, database=database),
        linger_ms=50,
    )


async def create_topics(settings: SinkSettings) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.bootstrap_servers)
    await admin.start()
    try:
        names = [
            NewTopic(topic.full_name(settings.namespace), 2 if topic.partitions == "events" else 1, 1)
            for topic in TOPICS
        ]
        await admin.create_topics(names)
    finally:
        await admin.close()


async def send(settings: SinkSettings, records: Iterable[tuple[str, str, bytes]]) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=settings.bootstrap_servers,
        transactional_id=f"{settings.namespace}writer",
        max_request_size=1_572_864,
    )
    await producer.start()
    try:
        async with producer.transaction():
            for topic, key, value in records:
                await producer.send(settings.namespace + topic, value, key=key.encode())
    finally:
        await producer.stop()


def encoded(records: Iterable[Record]) -> list[tuple[str, str, bytes]]:
    return [(topic, key, encode(record)) for topic, key, record in records]


async def run_until_written(settings: SinkSettings) -> Any:
    """Run a sink until nothing in the log is unwritten, and stop it."""
    stop = asyncio.Event()
    running = asyncio.create_task(run_sink_async(settings, stop=stop))
    try:
        async with asyncio.timeout(30):
            while not await is_written(settings):
                assert not running.done(), running.result()
                await asyncio.sleep(0.1)
    finally:
        stop.set()
        counters = await running
    return counters


async def is_written(settings: SinkSettings) -> bool:
    lags = await sink_status_async(settings)
    return len({lag.topic for lag in lags}) == len(TOPICS) and not sum(lag.lag for lag in lags)


def counts(settings: SinkSettings, *, final: bool = True) -> dict[str, int]:
    """Rows of every table that carries Kafka coordinates."""
    sql = "SELECT table FROM system.columns WHERE database = currentDatabase() AND name = 'kafka_timestamp'"
    tables = [row[0] for row in ask(settings.clickhouse, sql).rows]
    parts = [f"SELECT '{table}', count() FROM {table} {'FINAL' if final else ''}" for table in sorted(tables)]
    return dict(ask(settings.clickhouse, " UNION ALL ".join(parts)).rows)  # type: ignore[arg-type]


async def test_every_record_of_every_topic_arrives_in_typed_tables(settings: SinkSettings) -> None:
    await create_topics(settings)
    await send(settings, encoded(story()))
    counters = await run_until_written(settings)
    assert counters.records == len(story())
    assert all(counts(settings).values()), counts(settings)
