"""Many partitions read at once, on a real broker: few clients, each partition's records to its own reader, in order."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaTimeoutError

from rollbus.runtime.kafka import shared_reading
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.kafka.reading import open_reader, read_bounds
from rollbus.runtime.kafka.shared_reading import SharedReading
from rollbus.schemas.errors import UnavailableError

pytestmark = pytest.mark.services

PARTITIONS = 24


@pytest.fixture
async def topic(kafka: str, namespace: str) -> AsyncIterator[str]:
    """A topic whose partition n holds the records 0 … n, so that the first is nearly empty."""
    name = f"{namespace}many"
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    await admin.create_topics([NewTopic(name, num_partitions=PARTITIONS, replication_factor=1)])
    async with AIOKafkaProducer(bootstrap_servers=kafka) as producer:
        for number in range(1, PARTITIONS):
            for row in range(number):
                await producer.send(name, b"%d" % row, partition=number)
    yield name
    await admin.delete_topics([name])
    await admin.close()


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What each client that was opened is for."""
    opened = list[str]()

    @asynccontextmanager
    async def counted(connection: KafkaConnection, what: str = "", **options: Any) -> AsyncIterator[Any]:
        opened.append(what)
        async with open_reader(connection, what, **options) as consumer:
            yield consumer

    monkeypatch.setattr(shared_reading, "open_reader", counted)
    return opened


async def test_partitions_opened_at_once_share_a_client_but_no_record(
    kafka: str, topic: str, clients: list[str]
) -> None:
    reading, rows_by_partition = SharedReading(KafkaConnection(bootstrap_servers=kafka)), list[list[bytes]]()

    async def read(partition: int) -> None:
        rows_by_partition.append(rows := [])
        await reading.read(topic, partition, lambda record: rows.append(record.value))

    await asyncio.gather(*map(read, range(PARTITIONS)))
    assert rows_by_partition == [[b"%d" % row for row in range(number)] for number in range(PARTITIONS)]
    assert reading.records == sum(range(PARTITIONS))
    assert len(clients) <= 2


async def test_a_record_that_fails_one_reader_ends_no_other_reader(kafka: str, topic: str, clients: list[str]) -> None:
    reading, counts = SharedReading(KafkaConnection(bootstrap_servers=kafka)), dict.fromkeys(range(PARTITIONS), 0)

    async def read(partition: int) -> None:
        def take(record: Any) -> None:
            counts[partition] += 1
            if partition == 5 and counts[partition] == 2:
                raise ValueError("damaged")

        await reading.read(topic, partition, take)

    results = await asyncio.gather(*map(read, range(PARTITIONS)), return_exceptions=True)
    assert [str(result) for result in results if result is not None] == ["damaged"]
    assert counts == {number: 2 if number == 5 else number for number in range(PARTITIONS)}


async def test_a_partition_that_the_broker_does_not_give_holds_up_the_others_once(
    kafka: str, topic: str, clients: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = SharedReading(KafkaConnection(bootstrap_servers=kafka))
    failures = dict.fromkeys(range(PARTITIONS), 0)

    async def read_without_leader(consumer: Any, places: list[TopicPartition]) -> Any:
        if any(place.partition == 5 for place in places):
            raise KafkaTimeoutError
        return await read_bounds(consumer, places)

    async def read(partition: int) -> None:
        while failures[partition] < (5 if partition == 5 else PARTITIONS):
            try:
                await reading.read(topic, partition, lambda record: None)
                break
            except UnavailableError:
                failures[partition] += 1

    monkeypatch.setattr(shared_reading, "read_bounds", read_without_leader)
    await asyncio.gather(*map(read, range(PARTITIONS)))
    assert failures.pop(5) == 5
    assert set(failures.values()) == {1}
    assert len(clients) <= PARTITIONS + 5
    await reading.close()


async def test_a_reader_that_stops_waiting_holds_up_no_other_reader(kafka: str, topic: str) -> None:
    reading, seen = SharedReading(KafkaConnection(bootstrap_servers=kafka)), list[bytes]()
    gone = asyncio.create_task(reading.read(topic, 20, lambda record: None))
    stays = asyncio.create_task(reading.read(topic, 3, lambda record: seen.append(record.value)))
    await asyncio.sleep(0)
    gone.cancel()
    await stays
    assert seen == [b"0", b"1", b"2"]
    waiting = asyncio.create_task(reading.read(topic, 20, lambda record: None))
    await asyncio.sleep(0)
    await reading.close()
    with pytest.raises(UnavailableError, match="given back"):
        await waiting
