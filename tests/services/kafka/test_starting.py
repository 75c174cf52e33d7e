"""A client of a real broker whose start is cancelled, or whose stop is cut off, leaves no connection behind."""

import asyncio
import gc
import warnings
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import NewTopic
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import AIOKafkaConnection
from aiokafka.protocol.metadata import MetadataRequest

from rollbus.consumers import dead_letters_kafka
from rollbus.consumers.clickhouse.sink.kafka_log import KafkaSinkLog
from rollbus.consumers.clickhouse.sink.kafka_source import KafkaSinkSource
from rollbus.consumers.clickhouse.sink.status import read_sink_status
from rollbus.consumers.clickhouse.store.settings import SinkSettings
from rollbus.consumers.loggers.follow_kafka import follow
from rollbus.health.lag import LagOfGroups
from rollbus.nemo.bus import kafka as bus_kafka
from rollbus.producers.sending.kafka_sink import KafkaSink
from rollbus.resample.requests import resample
from rollbus.runtime.kafka import clients
from rollbus.runtime.kafka.clients import new_consumer, start_client, start_uncancelled, stop_clients
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.kafka.payload import KafkaPayload
from rollbus.runtime.kafka.writing import send_each
from rollbus.schemas.records.trajectories import Location
from rollbus.streams.kafka.settings import StreamSettings
from tests.services.streams.fixtures import commit_offsets

pytestmark = pytest.mark.services

ANSWER_S = 0.05
"""How long the broker takes to answer a client's first question, which is when its caller is cancelled."""


class Silent:
    """A run's logger, and who makes attempts again: here for their ends only."""

    def log_step(self, step: Any) -> None:
        """Nothing is to be logged."""

    log_evaluation = log_step

    def close(self) -> None:
        """Nothing to let go of."""

    async def finish(self) -> None:
        """Nothing was begun."""


class Opening(NamedTuple):
    """Something that starts clients, and the client in whose start it is cancelled."""

    name: str
    client: int
    """Counts from 1."""
    open: Callable[[KafkaConnection, str], Awaitable[Any]]


async def _producer(kafka: KafkaConnection, namespace: str) -> None:
    producer = AIOKafkaProducer(**kafka.client_options())
    try:
        await start_uncancelled(producer.start)
    finally:
        await producer.stop()


async def _source(kafka: KafkaConnection, namespace: str) -> None:
    await KafkaSinkSource(SinkSettings(kafka=kafka, namespace=namespace)).start()


async def _status(kafka: KafkaConnection, namespace: str) -> None:
    await read_sink_status(SinkSettings(kafka=kafka, namespace=namespace))


async def _log(kafka: KafkaConnection, namespace: str) -> None:
    async with KafkaSinkLog(kafka, namespace) as log:
        await log.spans(["drops"])


async def _written_again(kafka: KafkaConnection, namespace: str) -> None:
    await send_each(kafka, [])


async def _logger(kafka: KafkaConnection, namespace: str) -> None:
    await follow(kafka, namespace, Silent(), name="none", stop=asyncio.Event())


async def _lags(kafka: KafkaConnection, namespace: str) -> None:
    await LagOfGroups(kafka, namespace).ask()


async def _bus(kafka: KafkaConnection, namespace: str) -> None:
    await bus_kafka.KafkaBus(kafka, namespace).open()


async def _payload(kafka: KafkaConnection, namespace: str) -> None:
    await KafkaPayload(kafka, namespace).fetch([Location(topic="trajectories", partition=0, offset=0)])


async def _resampler(kafka: KafkaConnection, namespace: str) -> None:
    settings = StreamSettings(kafka=kafka, namespace=namespace)
    await resample(settings, "main", Silent(), stop=asyncio.Event())  # type: ignore[arg-type]


async def _recorder(kafka: KafkaConnection, namespace: str) -> None:
    await KafkaSink(kafka).start()


OPENINGS = (
    Opening("a producer", 1, _producer),
    Opening("the sink's source", 1, _source),
    Opening("the sink's status", 1, _status),
    Opening("the sink's status", 2, _status),
    Opening("the log of a rebuild", 1, _log),
    Opening("the log of a rebuild", 2, _log),
    Opening("dead letters", 1, dead_letters_kafka.read_dead_letters),
    Opening("dead letters written again", 1, _written_again),
    Opening("a run's logger", 1, _logger),
    Opening("lags", 1, _lags),
    Opening("lags", 2, _lags),
    Opening("a run's bus", 2, _bus),
    Opening("a run's bus", 3, _bus),
    Opening("a trajectory by its place", 1, _payload),
    Opening("attempts again", 1, _resampler),
    Opening("the recorder's sink", 1, _recorder),
)


@pytest.mark.parametrize("opening", OPENINGS, ids=lambda opening: f"{opening.name}, client {opening.client}")
async def test_a_start_cancelled_while_the_broker_is_asked_leaves_no_connection(
    kafka: str, namespace: str, monkeypatch: pytest.MonkeyPatch, opening: Opening
) -> None:
    await _commit(kafka, namespace)
    monkeypatch.setattr(bus_kafka, "RUN_TOPICS", ())
    request_sent = _asked_slowly(monkeypatch, opening.client)
    _collect()  # what tests before this one have left is not heard below
    running = asyncio.all_tasks()
    starting = asyncio.ensure_future(opening.open(KafkaConnection(bootstrap_servers=kafka), namespace))
    await asyncio.wait_for(request_sent.wait(), 120.0)
    starting.cancel()
    await asyncio.wait([starting])
    assert starting.cancelled()
    assert [task for task in asyncio.all_tasks() - running if task is not starting] == []
    del starting
    assert _collect() == []


async def test_a_consumer_whose_stop_is_cut_off_leaves_no_connection(
    kafka: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _commit(kafka, namespace)
    _collect()
    await _start_and_cut_off(KafkaConnection(bootstrap_servers=kafka), namespace, monkeypatch)
    monkeypatch.undo()
    assert _collect() == []


async def _start_and_cut_off(kafka: KafkaConnection, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancel the stop of a consumer that has done its work, before it closes its connections."""
    consumer = new_consumer(kafka, f"{namespace}topic", group_id=f"{namespace}group")
    await start_client(consumer)
    await consumer.committed(TopicPartition(f"{namespace}topic", 0))
    end_fetches, ending = consumer._fetcher.close, asyncio.Event()

    async def never_end() -> None:
        await end_fetches()
        ending.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(consumer._fetcher, "close", never_end)
    stopping = asyncio.ensure_future(stop_clients(consumer))
    await ending.wait()
    stopping.cancel()
    await asyncio.wait([stopping])


def _collect() -> list[str]:
    """Let go of what nothing holds, and return what it complains of."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        gc.collect()
    return [str(warning.message) for warning in heard]


def _asked_slowly(monkeypatch: pytest.MonkeyPatch, client: int) -> asyncio.Event:
    """Let the broker be slow to that client at its start, and return what says that it is being asked."""
    request_sent, begun = asyncio.Event(), list[None]()
    bootstrap, send = AIOKafkaClient.bootstrap, AIOKafkaConnection.send

    async def bootstrap_counted(self: AIOKafkaClient) -> None:
        begun.append(None)
        await bootstrap(self)

    async def send_slowly(self: AIOKafkaConnection, request: Any, **options: Any) -> Any:
        if isinstance(request, MetadataRequest) and len(begun) == client and not request_sent.is_set():
            request_sent.set()
            await asyncio.sleep(ANSWER_S)
        return await send(self, request, **options)

    monkeypatch.setattr(AIOKafkaClient, "bootstrap", bootstrap_counted)
    monkeypatch.setattr(AIOKafkaConnection, "send", send_slowly)
    return request_sent


async def _commit(kafka: str, namespace: str) -> None:
    """Let there be a group whose lag is asked for."""
    connection, place = KafkaConnection(bootstrap_servers=kafka), TopicPartition(f"{namespace}topic", 0)
    async with clients.running(connection, admin := clients.new_admin(connection)):
        await admin.create_topics([NewTopic(place.topic, num_partitions=1, replication_factor=1)])
    await commit_offsets(connection, f"{namespace}group", {place: 0})
