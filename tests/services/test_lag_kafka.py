"""How far consumer groups are behind, asked of a real broker."""

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from rollbus.consumers.clickhouse import SinkSettings
from rollbus.local.ports import free_port
from rollbus.schemas.errors import UnavailableError
from rollbus.schemas.kafka_connection import KafkaConnection
from rollbus.ui.lag_kafka import GroupLag, LagOfGroups
from tests.services.sink_fixtures import create_topics, send, sink_settings

pytestmark = pytest.mark.services

settings = sink_settings


async def commit(settings: SinkSettings, group: str, topic: str, offset: int) -> None:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=settings.kafka.bootstrap_servers,
        group_id=f"{settings.namespace}{group}",
        enable_auto_commit=False,
    )
    await consumer.start()
    place = TopicPartition(f"{settings.namespace.removeprefix('other-')}{topic}", 0)
    consumer.assign([place])
    await consumer.commit({place: offset})
    await consumer.stop()


async def test_every_group_of_a_namespace_is_told_and_nobody_elses(settings: SinkSettings) -> None:
    await create_topics(settings)
    await send(settings, [("batches", "main", b"one"), ("batches", "main", b"two")])
    await commit(settings, "trainer.agent", "batches", 0)
    await commit(settings, "sink", "batches", 1)
    await commit(settings.model_copy(update={"namespace": f"other-{settings.namespace}"}), "sink", "batches", 1)
    assert await LagOfGroups(settings.kafka, settings.namespace).ask() == [
        GroupLag("trainer.agent", "batches", members=0, partitions=1, lag=3),
        GroupLag("sink", "batches", members=0, partitions=1, lag=2),
    ]  # two records, and the marker of the transaction that wrote them


async def test_a_broker_that_does_not_answer_is_named() -> None:
    port = free_port()
    with pytest.raises(UnavailableError, match=f"127.0.0.1:{port}"):
        await LagOfGroups(KafkaConnection(bootstrap_servers=f"127.0.0.1:{port}"), "rollbus.").ask()
