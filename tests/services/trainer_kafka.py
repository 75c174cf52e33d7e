"""A namespace on the real broker, as the processes around the trainer see it."""

from collections.abc import Sequence
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.records_to_delete import RecordsToDelete

from rollbus.schemas.chunks import split
from rollbus.schemas.codec import decode
from rollbus.schemas.kafka_connection import KafkaConnection
from rollbus.schemas.topics import MAX_MESSAGE_BYTES, TOPICS, Topic
from rollbus.schemas.trajectories import Location
from rollbus.trainer.log_kafka import KafkaLog
from rollbus.trainer.reading_kafka import read_all
from tests.contracts.trainer_log import as_bytes

EVENT_PARTITIONS = 2


class KafkaWorld:
    """Topics of one namespace; `open` first, `close` at the end."""

    def __init__(self, bootstrap_servers: str, namespace: str) -> None:
        self.connection = KafkaConnection(bootstrap_servers=bootstrap_servers)
        self.namespace = namespace

    async def open(self) -> None:
        """Create every topic."""
        self._admin = AIOKafkaAdminClient(bootstrap_servers=self.connection.bootstrap_servers)
        await self._admin.start()
        new = []
        for topic in TOPICS:
            partitions = EVENT_PARTITIONS if topic.partitions == "events" else 1
            config = {"max.message.bytes": str(MAX_MESSAGE_BYTES)}
            new.append(NewTopic(topic.full_name(self.namespace), partitions, 1, topic_configs=config))
        await self._admin.create_topics(new)
        self._producer = AIOKafkaProducer(
            bootstrap_servers=self.connection.bootstrap_servers,
            transactional_id=f"{self.namespace}test-writer",
            max_request_size=MAX_MESSAGE_BYTES,
        )
        await self._producer.start()

    async def close(self) -> None:
        """Remove the topics, so that a session's broker stays small."""
        await self._producer.stop()
        await self._admin.delete_topics([topic.full_name(self.namespace) for topic in TOPICS])
        await self._admin.close()

    def log(self) -> KafkaLog:
        return KafkaLog(self.connection, namespace=self.namespace, run_id="main", model="agent")

    async def append(self, topic: Topic, key: str, *records: Any) -> Sequence[Location]:
        name = topic.full_name(self.namespace)
        async with self._producer.transaction():
            sent = []
            for record in records:
                waiting = [
                    await self._producer.send(name, frame, key=key.encode()) for frame in split(as_bytes(record))
                ]
                sent.append([await each for each in waiting])
        lasts = [frames[-1] for frames in sent]
        return [Location(topic=name, partition=last.partition, offset=last.offset) for last in lasts]

    async def expire(self, location: Location) -> None:
        partition = TopicPartition(location.topic, location.partition)
        await self._admin.delete_records({partition: RecordsToDelete(before_offset=location.offset + 1)})

    async def records(self, topic: Topic) -> Sequence[Any]:
        return [decode(frame.value) for frame in await read_all(self.connection, topic.full_name(self.namespace))]
