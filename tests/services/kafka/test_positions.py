"""Positions of a consumer group on a real broker: each way in which a log can be another one is named."""

from dataclasses import replace
from typing import Any

import pytest
from aiokafka import TopicPartition

from rollbus.consumers.clickhouse.store.settings import SinkSettings
from rollbus.consumers.dead_letters_kafka import read_dead_letters
from rollbus.runtime.kafka.clients import new_admin, new_consumer, running
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.kafka.log_id import read_log_ids
from rollbus.runtime.kafka.positions import MarkedConsumer, Position, Positions
from rollbus.runtime.log_mark import AcceptedLoss, LogMark
from rollbus.schemas.errors import ConfigurationError, DataLossError
from rollbus.streams.kafka.topics_on_broker import delete_topics
from tests.services.clickhouse.sink_fixtures import create_topics, late_drops, send
from tests.services.streams.fixtures import commit_offsets, delete_before, stream_settings

pytestmark = pytest.mark.services

READ = 3
"""Records that the group has read."""


class Reading:
    """A group that reads one topic."""

    def __init__(self, kafka: str, namespace: str) -> None:
        self.namespace, self.connection = namespace, KafkaConnection(bootstrap_servers=kafka)
        self.settings = SinkSettings(kafka=self.connection, namespace=namespace)
        self.place = TopicPartition(f"{namespace}policy-decisions", 0)
        self.positions = Positions(self.connection, f"{namespace}reader", "rollbus read accept-loss")

    async def send(self, count: int, first: int = 0) -> None:
        records = [("policy-decisions", "agent", value) for *_, value in late_drops(first, count)]
        await send(self.settings, records)

    async def take(self) -> int:
        """Read and commit what is there, as a process of the group; return how many records that were."""
        consumer = new_consumer(
            self.connection, self.place.topic, group_id=self.positions.group, auto_offset_reset="earliest"
        )
        marked, taken = MarkedConsumer(consumer, self.positions.open), 0
        async with running(self.connection, consumer):
            while not taken:
                fetched = await consumer.getmany(timeout_ms=500)
                await marked.require_same_logs()
                for messages in fetched.values():
                    await marked.commit({self.place: messages[-1]})
                    taken += len(messages)
        return taken

    async def mark_again(self, **changes: Any) -> None:
        """Commit the mark with another value in it."""
        position = await self.open()
        committed = Position(position.offset, replace(position.mark, **changes)).committed
        await commit_offsets(self.connection, self.positions.group, {self.place: committed})

    async def open(self, witness: LogMark | None = None) -> Position:
        witnesses = {} if witness is None else {self.place: witness}
        return (await self.positions.open([self.place], witnesses))[self.place]

    async def accept(self, *, dry_run: bool = False) -> dict[TopicPartition, AcceptedLoss]:
        return await self.positions.accept(
            [self.place], namespace=self.namespace, stage="reader", now_ms=5, dry_run=dry_run
        )


@pytest.fixture
async def reading(kafka: str, namespace: str) -> Reading:
    world = Reading(kafka, namespace)
    await create_topics(world.settings)
    await world.send(READ)
    assert await world.take() == READ
    return world


async def test_a_position_is_committed_with_its_log_and_read_again(reading: Reading) -> None:
    async with running(reading.connection, admin := new_admin(reading.connection)):
        log = (await read_log_ids(admin, [reading.place.topic]))[reading.place.topic]
    position = await reading.open()
    assert (position.offset, position.mark.last_offset) == (READ, READ - 1)
    assert (position.mark.cluster, position.mark.topic_id) == log
    assert await reading.accept() == {}


@pytest.mark.parametrize(
    ("changes", "why", "resumes_at"),
    [
        ({"digest": "0" * 16}, "was it restored from a backup", 0),
        ({"topic_id": "f" * 32}, "was deleted and made again", READ),
        ({"cluster": "elsewhere"}, "the position is of cluster elsewhere", READ),
    ],
)
async def test_another_log_is_refused_until_an_operator_accepts_it(
    reading: Reading, changes: Any, why: str, resumes_at: int
) -> None:
    await reading.mark_again(**changes)
    with pytest.raises(DataLossError, match=rf"{why}.*`rollbus read accept-loss` shows"):
        await reading.open()
    assert (await reading.accept(dry_run=True))[reading.place].resumes_at == resumes_at
    with pytest.raises(DataLossError, match=why):
        await reading.open()
    assert why in (await reading.accept())[reading.place].why
    assert (await reading.open()).offset == resumes_at
    (letter,) = await read_dead_letters(reading.connection, reading.namespace)
    assert (letter.stage, letter.error_class) == ("reader", "DataLossError")


async def test_a_position_without_a_mark_is_taken_over_once(reading: Reading, caplog: pytest.LogCaptureFixture) -> None:
    await commit_offsets(reading.connection, reading.positions.group, {reading.place: 2})
    caplog.set_level("INFO")
    assert await reading.take() == 1
    assert "position 2 of" in caplog.text
    assert (await reading.open()).mark.last_offset == READ - 1


async def test_positions_without_marks_get_them_even_on_idle_partitions(reading: Reading) -> None:
    idle = TopicPartition(f"{reading.namespace}evaluations", 0)
    await commit_offsets(reading.connection, reading.positions.group, {reading.place: 2, idle: 0})
    topics = (reading.place.topic, idle.topic)
    consumer = new_consumer(reading.connection, *topics, group_id=reading.positions.group)
    marked = MarkedConsumer(consumer, reading.positions.open)
    async with running(reading.connection, consumer):
        while not (fetched := await consumer.getmany(timeout_ms=500)):
            await marked.require_same_logs()
        await marked.require_same_logs()
        await marked.commit({reading.place: fetched[reading.place][-1]})
    positions = await reading.positions.open([reading.place, idle])
    assert [positions[place].offset for place in (reading.place, idle)] == [READ, 0]


async def test_an_offset_set_by_a_tool_is_refused_if_the_reader_had_a_mark(reading: Reading) -> None:
    mark = (await reading.open()).mark
    await commit_offsets(reading.connection, reading.positions.group, {reading.place: 1})
    with pytest.raises(DataLossError, match="a tool has set the offset to 1"):
        await reading.open(mark)
    other = TopicPartition(f"{reading.namespace}evaluations", 0)
    marked = Position(0, LogMark("cluster", "topic")).committed
    await commit_offsets(reading.connection, reading.positions.group, {other: marked})
    with pytest.raises(DataLossError, match="a tool has set the offset to 1"):
        await reading.open()
    assert (await reading.accept())[reading.place].resumes_at == 1
    assert await reading.take() == 2


async def test_a_recreated_topic_is_refused_if_its_reader_knows_the_old_one(
    reading: Reading,
) -> None:
    """A reader without a mark reads it from its beginning."""
    mark = (await reading.open()).mark
    await delete_topics(stream_settings(reading.connection.bootstrap_servers, reading.namespace), [reading.place.topic])
    await create_topics(reading.settings)
    await reading.send(2, first=7)
    with pytest.raises(DataLossError, match="was deleted and made again"):
        await reading.open(mark)
    assert await reading.take() == 2


async def test_a_loss_of_unread_records_is_accepted_only_for_a_stopped_reader(reading: Reading) -> None:
    await reading.send(3)
    await delete_before(reading.connection, {reading.place: 5})
    with pytest.raises(DataLossError, match="records 3 … 4 were deleted by retention"):
        await reading.open()
    consumer = new_consumer(
        reading.connection, reading.place.topic, group_id=reading.positions.group, auto_offset_reset="earliest"
    )
    async with running(reading.connection, consumer):
        await consumer.getmany(timeout_ms=1_000)
        with pytest.raises(ConfigurationError, match="stop it, and give the command again"):
            await reading.accept()
    assert (await reading.accept())[reading.place].resumes_at == 5
