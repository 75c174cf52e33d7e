"""The log in Kafka, read from offset to offset without a consumer group, so that no position moves."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from aiokafka import TopicPartition

from rollbus.consumers.clickhouse.sink.log import BLOCK, OffsetSpan, Partition
from rollbus.consumers.clickhouse.store.origin import KafkaRecord
from rollbus.runtime.kafka.clients import kafka_errors, new_admin, new_consumer, running, start_client, stop_clients
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.kafka.partitions import find_partitions
from rollbus.runtime.kafka.reading import SHORT_WAIT_MS, assign_paused, open_reader, read_bounds
from rollbus.schemas.topics import topic_of

POLL_MS = 500


class KafkaSinkLog:
    """Committed records of a namespace's topics; use it as an async context."""

    lacks_forgotten = False

    def __init__(self, kafka: KafkaConnection, namespace: str) -> None:
        """Nothing connects before the context is entered."""
        self._kafka = kafka
        self._namespace = namespace
        self._consumer: Any = None

    async def __aenter__(self) -> "KafkaSinkLog":
        """Connect; raises UnavailableError."""
        with kafka_errors(self._kafka):
            self._consumer = await start_client(new_consumer(self._kafka, fetch_max_wait_ms=SHORT_WAIT_MS))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Disconnect."""
        await stop_clients(self._consumer)

    async def spans(self, topics: Sequence[str]) -> Mapping[Partition, OffsetSpan]:
        """Return where each partition of these topics begins and ends; topics that do not exist are left out."""
        names = {topic_of(topic).full_name(self._namespace): topic for topic in topics}
        async with running(self._kafka, new_admin(self._kafka)) as admin, open_reader(self._kafka) as reader:
            places = await find_partitions(admin, names)
            assign_paused(reader, places)
            bounds = await read_bounds(reader, places)
        return {(names[place.topic], place.partition): OffsetSpan(*bounds[place]) for place in bounds}

    async def read(self, partition: Partition, span: OffsetSpan) -> AsyncIterator[Sequence[KafkaRecord]]:
        """Yield the committed records of a span; an open transaction delays them."""
        if span.begin >= span.end:
            return  # to choose a partition is to fetch from it
        topic, number = partition
        tp = TopicPartition(self._namespace + topic, number)
        self._consumer.assign([tp])
        self._consumer.seek(tp, span.begin)
        position = span.begin
        while position < span.end:
            with kafka_errors(self._kafka):
                fetched = await self._consumer.getmany(tp, timeout_ms=POLL_MS, max_records=BLOCK)
                position = await self._consumer.position(tp)
            yield [
                KafkaRecord(topic, number, record.offset, record.timestamp, record.key, record.value)
                for record in fetched.get(tp, ())
                if record.offset < span.end
            ]
