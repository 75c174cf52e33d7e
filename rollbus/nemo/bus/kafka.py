"""The bus on a real broker: a reader of the run's topics from their beginning, and an idempotent producer.

The log of the agents, of which a run may be played, is read here too.
"""

import asyncio
from collections.abc import Awaitable, Sequence
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

READ = (TRAJECTORIES, RUN_LOG, CURRICULUM, BATCHES, TRAINING_STEPS, DROPS)
OTHERS_TOO = (TRAJECTORIES, DROPS, EPISODE_EVENTS)
"""Topics that have the records of every run and of all traffic."""
POLL_MS = 200
_UNREAD = frozenset({Tick.__name__, "TurnRecorded", "ToolCalled", "Score"})
"""Records that no view needs: not decoded."""


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
        self._topics = (*READ, EPISODE_EVENTS) if with_events else READ
        self._steps = TRAINING_STEPS.full_name(namespace)
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
        self._consumer = await start_client(new_reader(self._connection))
        self._consumer.assign(self._partitions)
        await self._consumer.seek_to_beginning()
        if self._since_ms is not None:
            for place, offset in (await _starts_at(self._consumer, self._partitions, self._since_ms)).items():
                if place.topic in (topic.full_name(self._namespace) for topic in OTHERS_TOO):
                    self._consumer.seek(place, offset)

    async def publish(self, publications: Sequence[Publication]) -> None:
        """Send everything and await every acknowledgement."""
        if self._producer is None:
            raise UnavailableError("the run's log is not open")
        sent: list[Awaitable[Any]] = []
        with kafka_errors(self._connection, "writing to the run's log"):
            for publication in publications:
                topic = publication.topic.full_name(self._namespace)
                partition = 0 if publication.topic.partitions == "one" else None
                sent.append(
                    await self._producer.send(
                        topic, encode(publication.record), key=publication.key.encode(), partition=partition
                    )
                )
            await asyncio.gather(*sent)  # a flush would wait for them, too, and keep their errors to itself

    async def poll(self) -> list[Any]:
        """Return what is new and can be read; what cannot is a dead letter of the stage that reads it.

        Raises DataLossError if it is a record of a step: the run could train again what was trained.
        """
        with kafka_errors(self._connection, "reading the run's log"):
            return await self._poll(self._opened())

    async def catch_up(self) -> list[Any]:
        """Read up to the ends that hold now, however long the broker takes."""
        records = []
        with kafka_errors(self._connection, "reading the run's log"):
            consumer = self._opened()
            ends = await consumer.end_offsets(self._partitions)
            while [partition for partition, end in ends.items() if await consumer.position(partition) < end]:
                records += await self._poll(consumer)
        return records

    async def close(self) -> None:
        """Stop both clients."""
        producer, consumer = self._producer, self._consumer
        self._producer = self._consumer = None
        await stop_clients(producer, consumer)

    def _opened(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            raise UnavailableError("the run's log is not open")
        return self._consumer

    async def _poll(self, consumer: AIOKafkaConsumer) -> list[Any]:
        records = []
        for messages in (await consumer.getmany(timeout_ms=POLL_MS)).values():
            for message in messages:
                record = self._read(message)
                if record is not None:
                    records.append(record)
        return records

    def _read(self, one: Any) -> Any:
        if one.value is None or record_name(one.value) in _UNREAD:
            return None
        if one.topic == self._steps:
            return decode_ledger_record(Frame(one.topic, one.offset, one.key, one.value))
        try:
            return decode(one.value)
        except RecordError:
            return None


async def read_since(connection: KafkaConnection, topic: str, since_ms: int | None) -> list[Any]:
    """Return the records of a topic from a time on, or all; what cannot be read is a dead letter of its stage."""
    counts = await require_topics(connection, [topic])
    places = [TopicPartition(topic, number) for number in range(counts[topic])]
    starts = dict.fromkeys(places, 0)
    if since_ms is not None:
        async with open_reader(connection) as consumer:
            starts = await _starts_at(consumer, places, since_ms)
    records = []
    async with aclosing(read_from(connection, starts)) as messages:
        async for message in messages:
            with suppress(RecordError):
                records.append(None if message.value is None else decode(message.value))
    return records


async def _starts_at(
    consumer: AIOKafkaConsumer, places: Sequence[TopicPartition], since_ms: int
) -> dict[TopicPartition, int]:
    """Return where each partition's records of a time and later begin; its end where there are none."""
    at_time = await consumer.offsets_for_times(dict.fromkeys(places, since_ms))
    ends = await consumer.end_offsets(places)
    return {place: ends[place] if (at := at_time[place]) is None else at.offset for place in places}
