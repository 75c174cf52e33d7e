"""The log in Kafka, read from offset to offset without a consumer group: nobody's position moves."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from rollbus.consumers.clickhouse.chunk_joiner import KafkaRecord
from rollbus.consumers.clickhouse.log_files import BLOCK, Partition, Span
from rollbus.schemas.errors import UnavailableError
from rollbus.schemas.kafka_connection import KafkaConnection
from rollbus.schemas.starting_kafka import start_whole
from rollbus.schemas.stopping_kafka import stop_quietly
from rollbus.schemas.topics import MAX_MESSAGE_BYTES, topic_of

POLL_MS = 500


class KafkaLog:
    """Committed records of a namespace's topics; use it as an async context."""

    def __init__(self, kafka: KafkaConnection, namespace: str) -> None:
        """Nothing connects before the context is entered."""
        self._kafka = kafka
        self._namespace = namespace
        self._consumer: Any = None
        self._admin: Any = None

    async def __aenter__(self) -> "KafkaLog":
        """Connect; raises UnavailableError."""
        self._consumer = AIOKafkaConsumer(
            **self._kafka.client_options(),
            isolation_level="read_committed",
            enable_auto_commit=False,
            max_partition_fetch_bytes=2 * MAX_MESSAGE_BYTES,
        )
        self._admin = AIOKafkaAdminClient(**self._kafka.client_options())
        try:
            await start_whole(self._consumer.start)
            await start_whole(self._admin.start)
        except KafkaError as error:
            await self.__aexit__()
            raise self._unavailable(error) from error
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Disconnect."""
        await stop_quietly(self._admin.close, self._consumer.stop)

    async def spans(self, topics: Sequence[str]) -> Mapping[Partition, Span]:
        """Return where each partition of these topics begins and ends; topics that do not exist are left out."""
        names = {topic_of(topic).full_name(self._namespace): topic for topic in topics}
        try:
            existing = sorted(set(await self._admin.list_topics()) & set(names))
            partitions = sorted(
                TopicPartition(topic["topic"], partition["partition"])
                for topic in (await self._admin.describe_topics(existing) if existing else ())
                for partition in topic["partitions"]
            )
            begins = await self._consumer.beginning_offsets(partitions)
            ends = await self._consumer.end_offsets(partitions)
        except KafkaError as error:
            raise self._unavailable(error) from error
        return {(names[tp.topic], tp.partition): Span(begins[tp], ends[tp]) for tp in partitions}

    async def read(self, partition: Partition, span: Span) -> AsyncIterator[Sequence[KafkaRecord]]:
        """Yield the committed records of a span; a transaction that stays open holds it up."""
        topic, number = partition
        tp = TopicPartition(self._namespace + topic, number)
        self._consumer.assign([tp])
        self._consumer.seek(tp, span.begin)
        position = span.begin
        while position < span.end:
            try:
                fetched = await self._consumer.getmany(tp, timeout_ms=POLL_MS, max_records=BLOCK)
                position = await self._consumer.position(tp)
            except KafkaError as error:
                raise self._unavailable(error) from error
            yield [
                KafkaRecord(topic, number, record.offset, record.timestamp, record.key, record.value)
                for record in fetched.get(tp, ())
                if record.offset < span.end
            ]

    def _unavailable(self, error: Exception) -> UnavailableError:
        return self._kafka.unavailable(error)
