"""Letting go of a client that may be broken ends nothing but the client."""

import asyncio

import pytest
from aiokafka.client import AIOKafkaClient

from rollbus.runtime.kafka.clients import stop_all


class LeakingClient:
    """Stops as aiokafka's consumer does where a fetch is in flight: that fetch's cancellation comes out of `stop`."""

    async def stop(self) -> None:
        fetch = asyncio.create_task(asyncio.sleep(60))
        await asyncio.sleep(0)
        fetch.cancel()
        await fetch


class HangingClient:
    async def stop(self) -> None:
        await asyncio.sleep(60)


async def test_a_cancelled_fetch_of_the_client_does_not_end_its_owner() -> None:
    await stop_all(LeakingClient().stop)


async def test_a_stop_cancelled_at_one_client_still_stops_the_next() -> None:
    stopped = list[str]()

    async def stop() -> None:
        stopped.append("the second")

    stopping = asyncio.create_task(stop_all(HangingClient().stop, stop))
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert stopped == ["the second"]


async def test_a_cancellation_during_aiokafkas_close_reaches_the_caller() -> None:
    client = AIOKafkaClient()
    client._sync_task = asyncio.create_task(client._md_synchronizer())
    await asyncio.sleep(0)
    stopping = asyncio.create_task(stop_all(client.close))
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
