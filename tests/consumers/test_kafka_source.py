"""What the sink's source does where the log lacks what it wants to read."""

import logging
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import OffsetOutOfRangeError

from rollbus.consumers.clickhouse.sink.kafka_source import KafkaSource
from rollbus.consumers.clickhouse.store.settings import SinkSettings

TP = TopicPartition("rollbus.drops", 0)
PLACE = ("drops", 0)


class Shortened:
    """A client of a partition that begins later than it was read to, or than was committed."""

    def __init__(self, *, committed: int | None, begin: int) -> None:
        self._committed, self.begin = committed, begin
        self.at = 0

    def assignment(self) -> set[TopicPartition]:
        return {TP}

    async def beginning_offsets(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {TP: self.begin}

    async def end_offsets(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {TP: 900}

    async def committed(self, place: TopicPartition) -> int | None:
        return self._committed

    async def position(self, place: TopicPartition) -> int:
        return self.at

    def seek(self, place: TopicPartition, offset: int) -> None:
        self.at = offset

    async def getmany(self, **_: Any) -> dict[TopicPartition, list[Any]]:
        if self.at < self.begin:
            raise OffsetOutOfRangeError({TP: self.at})
        return {}


def source_of(client: Shortened) -> KafkaSource:
    source = KafkaSource(SinkSettings())
    source._consumer = client
    return source


async def test_what_retention_took_before_a_start_is_said(caplog: pytest.LogCaptureFixture) -> None:
    fetched = await source_of(Shortened(committed=100, begin=500)).poll(0)
    assert (fetched.starts, fetched.moved) == ({PLACE: 500}, {})
    assert "records 100 to 499 of drops:0" in caplog.text


async def test_a_partition_that_nobody_has_read_yet_has_lost_nothing(caplog: pytest.LogCaptureFixture) -> None:
    await source_of(Shortened(committed=None, begin=500)).poll(0)
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


async def test_what_retention_takes_from_a_reader_that_is_behind_is_said(caplog: pytest.LogCaptureFixture) -> None:
    client = Shortened(committed=100, begin=0)
    source = source_of(client)
    await source.poll(0)
    client.begin = 500
    fetched = await source.poll(0)
    assert (fetched.moved, fetched.positions, fetched.records) == ({PLACE: 500}, {PLACE: 500}, ())
    assert "records 100 to 499 of drops:0" in caplog.text
    assert (await source.poll(0)).moved == {}
