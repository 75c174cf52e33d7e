"""Rows are written, or the caller receives the reason."""

import asyncio
from typing import Any

import pytest
from aiokafka.errors import IllegalOperation, ProducerFenced
from aiokafka.producer.message_accumulator import BatchBuilder

from rollbus.runtime.kafka.writing import Row, write


class Producer:
    """One that a newer owner fences once its first batch is on its way."""

    def __init__(self) -> None:
        self.futures: list[asyncio.Future[Any]] = []

    def create_batch(self) -> BatchBuilder:
        return BatchBuilder(1_000, 0, is_transactional=1)

    async def send_batch(self, batch: BatchBuilder, topic: str, *, partition: int) -> asyncio.Future[Any]:
        if self.futures:
            raise IllegalOperation("Can't send messages while not in transaction")
        self.futures.append(asyncio.get_running_loop().create_future())
        self.futures[0].set_exception(ProducerFenced())
        return self.futures[0]


async def test_a_producer_fenced_between_two_batches_reports_the_fence() -> None:
    producer: Any = Producer()
    with pytest.raises(ProducerFenced):
        await write(producer, [Row("t", number, b"k", b"v") for number in range(2)])
