"""Letting go of a client that may be broken ends nothing but the client."""

import asyncio
from typing import Any, cast

import pytest

from rollbus.trainer.log_kafka import _stop_quietly


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


async def test_a_cancelled_fetch_of_the_client_does_not_end_the_trainer() -> None:
    await _stop_quietly(cast(Any, LeakingClient()))


async def test_a_cancelled_trainer_does_not_go_on_after_its_client() -> None:
    stopping = asyncio.create_task(_stop_quietly(cast(Any, HangingClient())))
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
