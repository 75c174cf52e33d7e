"""The bus on a real broker: a reader of the run's topics from their beginning, and an idempotent producer.

The log of the agents, of which a run may be played, is read here too.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from contextlib import aclosing, suppress
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from rollbus.producers.sending.kafka_sink import KafkaSink
from rollbus.runtime.kafka.clients import kafka_errors, new_producer, start_client, stop_clients
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.kafka.partitions import require_topics
from rollbus.runtime.kafka.reading import new_reader, open_reader, read_from
from rollbus.schemas.codec import decode, encode, record_name
from rollbus.schemas.errors import RecordError, UnavailableError
from rollbus.schemas.records.control import Tick
from rollbus.schemas.records.events import ToolCalled, TurnRecorded
from rollbus.schemas.records.trajectories import Score
from rollbus.schemas.topics import (
    BATCHES,
    CURRICULUM,
    DROPS,
    EPISODE_EVENTS,
    RUN_LOG,
    TRAINING_STEPS,
    TRAJECTORIES,
)
from rollbus.trainer.ledger.log import Publication
from rollbus.trainer.ledger.reading_kafka import Frame, decode_ledger_record

RUN_TOPICS = (TRAJECTORIES, RUN_LOG, CURRICULUM, BATCHES, TRAINING_STEPS, DROPS)
SHARED_TOPICS = (TRAJECTORIES, DROPS, EPISODE_EVENTS)
"""Topics that have the records of every run and of all traffic."""
POLL_MS = 200
_SKIPPED_RECORDS = frozenset({Tick.__name__, TurnRecorded.__name__, ToolCalled.__name__, Score.__name__})
"""Records that `RunView` does not need: decoding them would take most of the time."""


class KafkaBus:
    """Fulfils `Bus`."""

    def __init__(
        self, connection: KafkaConnection, namespace: str, *, with_events: bool = False, since_ms: int | None = None
    ) -> None:
        """`with_events` also reads the episodes' beginnings and ends: a resumed run must know which are done. Topics
        with others' traffic are read from `since_ms` on; from their beginning where it is None.
        """
        self._since_ms = since_ms
        self._connection, self._namespace = connection, namespace
        self._topics = (*RUN_TOPICS, EPISODE_EVENTS) if with_events else RUN_TOPICS
        self._steps, self._run_log = TRAINING_STEPS.full_name(namespace), RUN_LOG.full_name(namespace)
        self._shared_topics = {topic.full_name(namespace) for topic in SHARED_TOPICS}
        self._sink = KafkaSink(connection, client_id="rollbus-finetune")
        self._partitions: list[TopicPartition] = []
        self._consumer: AIOKafkaConsumer | None = None
        self._producer: AIOKafkaProducer | None = None

    @property
    def sink(self) -> KafkaSink:
        """Where the recorder sends."""
        return self._sink

    async def open(self) -> None:
        """Connect and go to the oldest records; raises ConfigurationError where a topic is missing. What does not open
        whole lets its connections go.
        """
        names = [topic.full_name(self._namespace) for topic in self._topics]
        counts = await require_topics(self._connection, names)
        self._partitions = [TopicPartition(name, number) for name in names for number in range(counts[name])]
        try:
            with kafka_errors(self._connection, "opening the run's log"):
                await self._start()
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> None:
        self._producer = await start_client(new_producer(self._connection))
        consumer = self._consumer = await start_client(new_reader(self._connection))
        consumer.assign(self._partitions)
        await consumer.seek_to_beginning()
        if self._since_ms is not None:
            shared = [partition for partition in self._partitions if partition.topic in self._shared_topics]
            for partition, offset in (await _find_offsets(consumer, shared, self._since_ms)).items():
                consumer.seek(partition, offset)

    async def publish(self, publications: Sequence[Publication]) -> None:
        """Send everything and await every acknowledgement."""
        if self._producer is None:
            raise UnavailableError("the run's log is not open")
        acknowledgements: list[Awaitable[Any]] = []
        with kafka_errors(self._connection, "writing to the run's log"):
            for publication in publications:
                topic, data = publication.topic.full_name(self._namespace), encode(publication.record)
                partition = 0 if publication.topic.partitions == "one" else None
                key = publication.key.encode()
                acknowledgements.append(await self._producer.send(topic, data, key=key, partition=partition))
            await asyncio.gather(*acknowledgements)  # a flush would wait for them, too, and keep their errors to itself

    async def poll(self) -> list[Any]:
        """Return what is new and can be read; what cannot is a dead letter of the stage that reads it.

        Raises DataLossError if it is a record of a step: the run could train again what was trained.
        """
        with kafka_errors(self._connection, "reading the run's log"):
            fetched = await self._require_consumer().getmany(timeout_ms=POLL_MS)
        return [*self._decode(message for messages in fetched.values() for message in messages)]

    async def catch_up(self) -> list[Any]:
        """Return what lies before the present ends of the topics, however long the broker takes; raises as `poll`."""
        records, consumer = [], self._require_consumer()
        with kafka_errors(self._connection, "reading the run's log"):
            ends = await consumer.end_offsets(self._partitions)
            while [partition for partition, end in ends.items() if await consumer.position(partition) < end]:
                records += await self.poll()
        return records

    async def close(self) -> None:
        """Stop both clients."""
        producer, consumer = self._producer, self._consumer
        self._producer = self._consumer = None
        await stop_clients(producer, consumer)

    def _require_consumer(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            raise UnavailableError("the run's log is not open")
        return self._consumer

    def _decode(self, messages: Iterable[Any]) -> Iterator[Any]:
        tick = None
        for message in messages:
            if message.value is None:
                continue
            name = record_name(message.value)
            if name == Tick.__name__ and message.topic == self._run_log:
                tick = message.value
            if name in _SKIPPED_RECORDS:
                continue
            if message.topic == self._steps:
                yield decode_ledger_record(Frame(message.topic, message.offset, message.key, message.value))
            else:
                with suppress(RecordError):
                    yield decode(message.value)
        if tick is not None:  # the newest says what those before it said
            yield decode(tick)


async def read_since(connection: KafkaConnection, topic: str, since_ms: int | None) -> list[Any]:
    """Return the records of a topic from a time on, or all, with None for a record without a value.

    What cannot be read is left out: it is a dead letter of the stage that reads it.
    """
    counts = await require_topics(connection, [topic])
    partitions = [TopicPartition(topic, number) for number in range(counts[topic])]
    starts = dict.fromkeys(partitions, 0)
    if since_ms is not None:
        async with open_reader(connection) as consumer:
            starts = await _find_offsets(consumer, partitions, since_ms)
    records = []
    async with aclosing(read_from(connection, starts)) as messages:
        async for message in messages:
            with suppress(RecordError):
                records.append(None if message.value is None else decode(message.value))
    return records


async def _find_offsets(
    consumer: AIOKafkaConsumer, partitions: Sequence[TopicPartition], since_ms: int
) -> dict[TopicPartition, int]:
    """Return where each partition's records of a time and later begin; its end where there are none."""
    at_time = await consumer.offsets_for_times(dict.fromkeys(partitions, since_ms))
    ends = await consumer.end_offsets(partitions)
    return {partition: ends[partition] if (at := at_time[partition]) is None else at.offset for partition in partitions}
