"""A client of a real broker whose start is cancelled leaves no connection behind."""

import asyncio
import gc
import warnings
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.conn import AIOKafkaConnection
from aiokafka.protocol.metadata import MetadataRequest

from rollbus.schemas.starting_kafka import start_whole

pytestmark = pytest.mark.services


async def test_a_start_cancelled_while_the_broker_is_asked_leaves_no_connection(
    kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()  # what tests before this one have left is not heard below
    asked, send = asyncio.Event(), AIOKafkaConnection.send

    async def send_slowly(connection: AIOKafkaConnection, request: Any, **options: Any) -> Any:
        if isinstance(request, MetadataRequest):
            asked.set()
            await asyncio.sleep(0.05)
        return await send(connection, request, **options)

    monkeypatch.setattr(AIOKafkaConnection, "send", send_slowly)
    producer = AIOKafkaProducer(bootstrap_servers=kafka)
    starting = asyncio.create_task(start_whole(producer.start))
    await asked.wait()
    starting.cancel()
    await asyncio.wait([starting])
    await producer.stop()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        del producer, starting
        gc.collect()
    assert [str(each.message) for each in heard] == []
