"""The local broker: takes records of the sizes we promise, and keeps them over a restart."""

import asyncio
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from rollbus.local.kafka.service import kafka_service
from rollbus.local.process.ports import find_free_port
from rollbus.local.process.service import ServiceProcess
from rollbus.local.process.tether import tethered

pytestmark = pytest.mark.services


async def create_topic(bootstrap_servers: str, name: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)])
    finally:
        await admin.close()


async def send_in_transaction(bootstrap_servers: str, topic: str, value: bytes) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap_servers,
        transactional_id=f"{topic}-writer",
        max_request_size=1_572_864,
    )
    await producer.start()
    try:
        async with producer.transaction():
            await (await producer.send(topic, value))
    finally:
        await producer.stop()


async def read_committed(bootstrap_servers: str, topic: str) -> bytes:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap_servers,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, 0)])
        record = await consumer.getone()
        value: bytes = record.value
        return value
    finally:
        await consumer.stop()


async def test_records_survive_a_restart_on_other_ports(tmp_path: Path) -> None:
    def broker_on_free_ports() -> ServiceProcess:
        service = kafka_service(folder=tmp_path, client_port=find_free_port(), controller_port=find_free_port())
        return ServiceProcess(service, log_path=tmp_path / "kafka.log", prefix=tethered())

    broker = broker_on_free_ports()
    try:
        broker.start()
        await asyncio.to_thread(broker.wait_until_healthy)
        await create_topic(broker.service.address, "kept")
        await send_in_transaction(broker.service.address, "kept", b"before")
        broker.stop()
        broker = broker_on_free_ports()
        broker.start()
        await asyncio.to_thread(broker.wait_until_healthy)
        assert await read_committed(broker.service.address, "kept") == b"before"
    finally:
        broker.stop()
