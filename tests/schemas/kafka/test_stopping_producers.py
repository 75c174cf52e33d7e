"""A producer is let go of, whatever its own end comes to."""

import asyncio
from typing import Any

import pytest
from aiokafka.errors import KafkaError

from rollbus.schemas.kafka.clients import stop_producer


class Producer:
    """Ends by itself as `outcome` says: never, or with an error; notes whether its connections were closed."""

    def __init__(self, outcome: BaseException | None = None) -> None:
        self.outcome = outcome
        self.client = self
        self.stopping, self.closed = asyncio.Event(), False

    async def stop(self) -> None:
        self.stopping.set()
        if self.outcome is not None:
            raise self.outcome
        await asyncio.Event().wait()

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.closed = True


@pytest.mark.parametrize("outcome", [None, KafkaError("away"), OSError("away")], ids=["hangs", "fails", "is cut off"])
async def test_one_that_cannot_end_by_itself_has_its_connections_closed(
    outcome: Any,
) -> None:
    producer: Any = Producer(outcome)
    await stop_producer(producer, timeout_s=0.01)
    assert producer.closed


async def test_one_whose_end_nobody_waits_for_has_its_connections_closed() -> None:
    producer: Any = Producer()
    stopping = asyncio.create_task(stop_producer(producer))
    await producer.stopping.wait()
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert producer.closed
