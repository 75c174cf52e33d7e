"""A producer is let go of, whatever its own end comes to."""

import asyncio
import gc
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, ProducerFenced

from rollbus.runtime.kafka.clients import stop_producer


class Producer:
    """Ends by itself as `outcome` says: never, or with an error; notes whether its connections were closed."""

    def __init__(self, outcome: BaseException | None = None) -> None:
        self.outcome = outcome
        self.client = self
        self._txn_manager, self._message_accumulator = None, SimpleNamespace(_batches={})
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
async def test_the_connections_of_a_producer_that_cannot_end_are_closed(
    outcome: Any,
) -> None:
    producer: Any = Producer(outcome)
    await stop_producer(producer, timeout_s=0.01)
    assert producer.closed


async def test_an_unawaited_producer_closes_its_connections() -> None:
    producer: Any = Producer()
    stopping = asyncio.create_task(stop_producer(producer))
    await producer.stopping.wait()
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert producer.closed


async def test_a_fenced_producer_leaves_no_error_in_the_event_loop() -> None:
    """asyncio prints each error that nobody has looked at: one for every partition, with twenty lines each."""
    reported = list[str]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["message"]))
    producer = AIOKafkaProducer(transactional_id="me")
    producer._txn_manager.set_pid_and_epoch(1, 0)
    await producer.begin_transaction()
    sent = []
    for number in range(3):
        batch = producer.create_batch()
        batch.append(timestamp=None, key=b"k", value=b"v")
        sent.append(await producer._message_accumulator.add_batch(batch, TopicPartition("t", number), 1.0))
    failed = await failed_task(ProducerFenced())
    producer._sender._sender_task = failed
    producer._sender._fail_all(failed)
    assert {type(send_outcome) for send_outcome in await asyncio.gather(*sent, return_exceptions=True)} == {
        ProducerFenced
    }
    await stop_producer(producer)
    del producer, failed, sent
    for _ in range(10):  # what stopping has left to do
        await asyncio.sleep(0)
    gc.collect()
    assert reported == []


async def failed_task(error: Exception) -> Any:
    async def fail() -> None:
        raise error

    task = asyncio.create_task(fail())
    await asyncio.wait([task])
    return task
