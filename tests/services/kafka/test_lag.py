"""How far consumer groups are behind, asked of a real broker."""

import asyncio

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from rollbus.consumers.clickhouse.sink.kafka_source import KafkaSinkSource
from rollbus.consumers.clickhouse.sink.status import read_sink_status
from rollbus.consumers.clickhouse.store.settings import SinkSettings
from rollbus.estimates.backlog import describe_backlog
from rollbus.health.lag import LagOfGroups, LagRow
from rollbus.health.reading import read_health
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.kafka.lag import open_lag
from rollbus.runtime.kafka.positions import Position
from rollbus.runtime.log_mark import LogMark
from rollbus.streams.kafka.topics_on_broker import ensure_topics
from tests.services.clickhouse.sink_fixtures import create_topics, is_written, send, sink_settings
from tests.services.streams.fixtures import CountStage, commit_offsets, delete_before, send_events, stream_settings
from tests.services.streams.process import running

pytestmark = pytest.mark.services

settings = sink_settings


async def commit(settings: SinkSettings, group: str, topic: str, offset: int) -> None:
    place = TopicPartition(f"{settings.namespace.removeprefix('other-')}{topic}", 0)
    await commit_offsets(settings.kafka, f"{settings.namespace}{group}", {place: offset})


async def test_every_group_of_a_namespace_is_listed_alone(settings: SinkSettings) -> None:
    await create_topics(settings)
    await send(settings, [("batches", "main", b"one"), ("batches", "main", b"two")])
    await commit(settings, "trainer.agent", "batches", 0)
    await commit(settings, "sink", "batches", 1)
    await commit(settings.model_copy(update={"namespace": f"other-{settings.namespace}"}), "sink", "batches", 1)
    assert await LagOfGroups(settings.kafka, settings.namespace).ask() == [
        LagRow("trainer.agent", "batches", members=0, partitions=1, lag=3),
        LagRow("sink", "batches", members=0, partitions=1, lag=2),
    ]  # two records, and the marker of the transaction that wrote them


async def test_the_sinks_lag_is_one_number_everywhere(settings: SinkSettings) -> None:
    """In its own status, on the page and in the picture of health; topics that it has not begun count too."""
    await create_topics(settings)
    await send(settings, [("batches", "main", b"one"), ("drops", "x", b"two"), ("run-log", "main", b"three")])
    await commit(settings, "trainer.agent", "batches", 0)
    await commit(settings, "sink", "batches", 1)
    await delete_before(settings.kafka, {TopicPartition(f"{settings.namespace}batches", 0): 2})  # what it has not read
    sink_lag = sum(status.lag for status in await read_sink_status(settings))
    page = await LagOfGroups(settings.kafka, settings.namespace).ask()
    picture = await read_health(settings.kafka, settings.namespace)
    assert sink_lag == 2 + 2, "of drops and of the run log a record and its marker each; of batches nothing is left"
    assert sum(row.lag for row in page if row.group == "sink") == sink_lag
    assert sum(group.lag for group in picture.groups if group.group == "sink") == sink_lag


async def test_the_sinks_lag_counts_the_records_of_an_open_transaction(
    settings: SinkSettings,
) -> None:
    """Otherwise a caller that waits until all is written would end before records whose commit was answered."""
    await create_topics(settings)
    async with (
        AIOKafkaProducer(
            bootstrap_servers=settings.kafka.bootstrap_servers, transactional_id=f"{settings.namespace}writer"
        ) as producer,
        producer.transaction(),
    ):
        await producer.send_and_wait(f"{settings.namespace}drops", b"one", key=b"x")
        assert sum(row.lag for row in await read_sink_status(settings)) == 1
        assert not await is_written(settings)


async def test_members_and_lag_are_right_beside_groups_of_every_kind(kafka: str, namespace: str) -> None:
    """A client that misreads the description of one group misreads every group after it."""
    settings = stream_settings(kafka, namespace)
    sink = SinkSettings(kafka=settings.kafka, namespace=namespace)
    await ensure_topics(settings, [CountStage()])
    await send_events(settings, ["a", "b", "c", "d"], range(25))
    await send(
        sink, [("drops", "main", b"one")]
    )  # a topic without records, of which nothing is committed, is not a row
    await commit(sink, "trainer.agent", "episode-events", 10)
    await delete_before(KafkaConnection(bootstrap_servers=kafka), {TopicPartition(f"{namespace}episode-events", 0): 20})
    stranger = AIOKafkaConsumer(
        f"{namespace}drops",
        bootstrap_servers=kafka,
        group_id=f"{namespace}stranger",
        partition_assignment_strategy=[StickyPartitionAssignor],
    )
    source = KafkaSinkSource(sink)
    try:
        await stranger.start()
        await source.start()
        async with running(settings, [CountStage()]), asyncio.timeout(120):
            while not (await source.poll(0.5)).records:
                pass
            await source.commit({("episode-events", 1): Position(5, LogMark("", ""))})
            async with open_lag(settings.kafka) as lag:
                groups = await lag.read_namespace(namespace)
            rows = {(row.group, row.topic): row for row in await LagOfGroups(settings.kafka, namespace).ask()}
            of_events = [status for status in await read_sink_status(sink) if status.topic == "episode-events"]
    finally:
        await source.stop()
        await stranger.stop()
    states = {name.removeprefix(namespace): (group.state, group.members) for name, group in groups.items()}
    assert states == {
        "counter": ("Stable", 1),
        "sink": ("Stable", 1),
        "stranger": ("Stable", 1),
        "trainer.agent": ("Empty", 0),
    }
    assert [(of_event.committed, of_event.lag) for of_event in of_events] == [
        (None, of_events[0].end - 20),  # what retention has deleted cannot be read
        (5, of_events[1].end - 5),
    ]
    assert rows["sink", "episode-events"].members == 1
    assert rows["stranger", "drops"].members == 1  # it has committed nothing, and is known by what it is assigned
    assert rows["trainer.agent", "episode-events"].members == 0


async def test_a_backlog_is_named_beside_too_few_episodes(kafka: str, namespace: str) -> None:
    settings = stream_settings(kafka, namespace)
    await ensure_topics(settings)
    assert await describe_backlog(settings) is None
    sent = await send_events(settings, ["k0", "k1"], range(20))
    sentence = await describe_backlog(settings)
    assert sentence == f"{sent} records of episode-events are not assembled yet; does a worker run (`rollbus status`)?"
