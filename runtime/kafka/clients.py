"""Settings → started clients of the broker: consumer, producer, transactional producer and admin client.

Each function builds a client with the settings that hold everywhere in rollbus; what a caller adds wins. `running`
starts clients, stops them within a bound, and turns their errors into ours.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Literal, TypedDict, TypeVar, Unpack

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import IllegalOperation, KafkaError, OffsetOutOfRangeError, ProducerFenced
from aiokafka.protocol.api import Request, Response

from rollbus.runtime.cancelling import count_cancellations, is_being_cancelled
from rollbus.runtime.kafka.batches import read_bounded
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.kafka.groups import see_errors_of_offsets
from rollbus.schemas.errors import DataLossError, FencedError
from rollbus.schemas.limits import FETCH_BYTES

logger = logging.getLogger(__name__)

Client = TypeVar("Client", AIOKafkaConsumer, AIOKafkaProducer, AIOKafkaAdminClient)

BATCH_BYTES = 1_048_576
"""Uncompressed; below the topics' limit even if nothing compresses. A single larger record is a batch of its own."""
REQUEST_TIMEOUT_MS = 20_000
ADMIN_TIMEOUT_MS = 40_000
"""aiokafka's own."""
RECORDS_AT_ONCE = 10_000
"""Of one hand-over: the rest of a fetch stays compressed. A fetch may hold millions of empty records."""
BROKER_PAUSE_S = 0.25
"""Between two looks for a broker of a cluster that has none."""
START_GRACE_S = 2.0
STOP_TIMEOUT_S = 5.0
PRODUCER_STOP_S = 2.0
"""A producer whose broker is gone never flushes: it is cut off after so long."""


class ConsumerOptions(TypedDict, total=False):
    """What a caller may choose of aiokafka's consumer, under its names."""

    auto_offset_reset: Literal["earliest", "latest"]
    client_id: str
    consumer_timeout_ms: int
    fetch_max_wait_ms: int
    group_id: str
    heartbeat_interval_ms: int
    isolation_level: Literal["read_uncommitted"]
    max_partition_fetch_bytes: int
    max_poll_interval_ms: int
    max_poll_records: int
    metadata_max_age_ms: int
    partition_assignment_strategy: Sequence[type]
    rebalance_timeout_ms: int
    session_timeout_ms: int


class ProducerOptions(TypedDict, total=False):
    """What a caller may choose of aiokafka's producer, under its names."""

    client_id: str
    linger_ms: int
    max_batch_size: int


def new_consumer(connection: KafkaConnection, *topics: str, **options: Unpack[ConsumerOptions]) -> AIOKafkaConsumer:
    """Return a consumer that reads only committed records, commits no offsets by itself, and skips no records."""
    return AIOKafkaConsumer(*topics, **consumer_options(connection, **options))


def consumer_options(connection: KafkaConnection, **options: Unpack[ConsumerOptions]) -> dict[str, Any]:
    """Return what a consumer takes; the caller's own options win. From now on aiokafka reads as we need it."""
    read_bounded()
    see_errors_of_offsets()
    standard = {
        "isolation_level": "read_committed",
        "enable_auto_commit": False,
        "auto_offset_reset": "none",  # raise where retention was faster, instead of skipping records
        "max_partition_fetch_bytes": FETCH_BYTES,
        "max_poll_records": RECORDS_AT_ONCE,
    }
    return {**connection.client_options(), **standard, **options}


def new_producer(connection: KafkaConnection, **options: Unpack[ProducerOptions]) -> AIOKafkaProducer:
    """Return an idempotent producer."""
    return _new_producer(connection, {"enable_idempotence": True, **options})


def new_transactional_producer(
    connection: KafkaConnection, transactional_id: str, timeout_s: float
) -> AIOKafkaProducer:
    """Return a producer whose start fences every older one of the same id and ends what that one left open."""
    timeout_ms = int(timeout_s * 1000)
    return _new_producer(connection, {"transactional_id": transactional_id, "transaction_timeout_ms": timeout_ms})


def new_admin(connection: KafkaConnection, *, request_timeout_ms: int = ADMIN_TIMEOUT_MS) -> AIOKafkaAdminClient:
    """Return an admin client, which waits for a broker where the cluster names none."""
    return _PatientAdmin(**connection.client_options(), request_timeout_ms=request_timeout_ms)


class _PatientAdmin(AIOKafkaAdminClient):  # type: ignore[misc]
    """An admin client of a cluster that may have no broker for a while.

    The controller leaves out a broker that it has not heard from for its session (9 s by default), as it happens to the
    only one of a machine that was asleep or too busy. aiokafka fails at once; the broker is back after its next beat.
    """

    async def _send_request(self, request: Request[Response], node_id: int | None = None) -> Response:
        if node_id is None:
            async with asyncio.timeout(self._request_timeout_ms / 1000):
                while self._client.get_random_node() is None:
                    await self._client.force_metadata_update()
                    await asyncio.sleep(BROKER_PAUSE_S)
        return await super()._send_request(request, node_id)


def _new_producer(connection: KafkaConnection, options: dict[str, Any]) -> AIOKafkaProducer:
    standard = {
        "compression_type": "zstd",
        "max_batch_size": min(BATCH_BYTES, connection.max_record_bytes),
        "max_request_size": connection.max_message_bytes,
        "request_timeout_ms": REQUEST_TIMEOUT_MS,
    }
    return AIOKafkaProducer(**connection.client_options() | standard | options)


@asynccontextmanager
async def running(connection: KafkaConnection, client: Client, *, what: str = "") -> AsyncIterator[Client]:
    """Start a client, and stop it at the end; the body's errors become ours, and say what it was for."""
    with kafka_errors(connection, what):
        await start_client(client)
        try:
            yield client
        finally:
            await stop_clients(client)


@contextmanager
def kafka_errors(
    connection: KafkaConnection, what: str = "", *, fenced: str = "another process with the same id has taken over"
) -> Iterator[None]:
    """Turn aiokafka's errors into FencedError, DataLossError or UnavailableError."""
    try:
        yield
    except ProducerFenced as error:
        raise FencedError(f"{what}: {fenced}" if what else fenced) from error
    except OffsetOutOfRangeError as error:
        if not error.args:  # of an admin client, which asked for records to be deleted
            raise connection.unavailable(error, what) from error
        missing_places = ", ".join(
            f"{topic}[{number}] from {at}" for (topic, number), at in sorted(dict(error.args[0]).items())
        )
        raise DataLossError(
            f"retention has deleted records before they were read: {missing_places}; give the command again"
        ) from error
    except (KafkaError, IllegalOperation, OSError) as error:
        raise connection.unavailable(error, what) from error


async def start_client(client: Client, *, grace_s: float = START_GRACE_S) -> Client:
    """Start a client and return it; one that does not start is stopped."""
    try:
        await start_uncancelled(client.start, grace_s=grace_s)
        await asyncio.sleep(0)  # a consumer that is stopped before its tasks have begun raises CancelledError
    except BaseException:
        await stop_clients(client)
        raise
    return client


async def start_uncancelled(start: Callable[[], Awaitable[None]], *, grace_s: float = START_GRACE_S) -> None:
    """Start a client; on being cancelled, give the start a moment to end before it is cancelled too.

    If a bootstrap is cancelled, aiokafka forgets its open connection. After a bootstrap that has ended, `stop` closes
    every connection.
    """
    starting = asyncio.ensure_future(start())
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        try:
            await asyncio.wait([starting], timeout=grace_s)
        finally:
            starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        raise


async def stop_clients(*clients: AIOKafkaConsumer | AIOKafkaProducer | AIOKafkaAdminClient | None) -> None:
    """Stop clients that may be broken or were never made, each whatever becomes of those before it."""
    await stop_all(*(_stop_of(client) for client in clients if client is not None))


def _stop_of(client: Any) -> Callable[[], Awaitable[None]]:
    if isinstance(client, AIOKafkaProducer):
        return lambda: stop_producer(client)
    if isinstance(client, AIOKafkaConsumer):
        return lambda: _stop_consumer(client)
    stop: Callable[[], Awaitable[None]] = client.close
    return stop


async def _stop_consumer(consumer: AIOKafkaConsumer) -> None:
    async with _cut_off_where_not_stopped(lambda: consumer._client, STOP_TIMEOUT_S):
        await consumer.stop()


async def stop_producer(producer: AIOKafkaProducer, *, timeout_s: float = PRODUCER_STOP_S) -> None:
    """Stop a producer; one that cannot flush in time, or whose stop is cancelled, is cut off.

    What it left open is settled by its successor.
    """
    try:
        with suppress(TimeoutError, KafkaError, OSError):
            async with _cut_off_where_not_stopped(lambda: producer.client, timeout_s):
                await asyncio.wait_for(producer.stop(), timeout_s)
    finally:
        with suppress(AttributeError):  # these are aiokafka's own names: another version may have others
            _see_failures(producer)


@asynccontextmanager
async def _cut_off_where_not_stopped(
    connections: Callable[[], AIOKafkaClient], timeout_s: float
) -> AsyncIterator[None]:
    """Close a client's connections where its stop, the body, fails or is cancelled."""
    try:
        yield
    except BaseException:
        with suppress(Exception):
            await asyncio.wait_for(connections().close(), timeout_s)
        raise


def _see_failures(producer: AIOKafkaProducer) -> None:
    """Look at the errors that a failed producer leaves in futures that nothing awaits: asyncio would print each.

    A producer that is fenced has one for its transaction, and one for every partition that it had not sent to yet.
    Whoever was writing has received the error.
    """
    transactions, waiting = producer._txn_manager, producer._message_accumulator._batches.values()
    open_futures = [
        future for batches in waiting for batch in batches for future in (batch.future, batch._drain_waiter)
    ]
    if transactions is not None and transactions._transaction_waiter is not None:
        open_futures.append(transactions._transaction_waiter)
    for future in open_futures:
        if future.done() and not future.cancelled():
            future.exception()


async def stop_all(*stops: Callable[[], Awaitable[None]]) -> None:
    """Call each, whatever becomes of those before it, and wait for none of them for long."""
    if not stops:
        return
    try:
        await _stop_bounded(stops[0])
    finally:
        await stop_all(*stops[1:])


async def _stop_bounded(stop: Callable[[], Awaitable[None]]) -> None:
    """Raise CancelledError if this task is cancelled meanwhile: aiokafka's `close` returns as if it were not."""
    requests_before = count_cancellations()
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await stop()
    except (KafkaError, OSError, TimeoutError) as error:
        logger.debug("while stopping a client: %r", error)
    except asyncio.CancelledError:  # aiokafka lets the one of a fetch that it has cancelled itself escape
        if is_being_cancelled():
            raise
    if count_cancellations() > requests_before:
        raise asyncio.CancelledError
