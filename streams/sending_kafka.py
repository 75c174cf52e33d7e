"""One record to a topic of one partition, confirmed: what an operator and a replay say once in a while."""

from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from rollbus.schemas.codec import encode
from rollbus.schemas.topics import Topic
from rollbus.streams.settings import StreamSettings


async def send_record(settings: StreamSettings, topic: Topic, key: str, record: Any) -> None:
    """Write a record and wait until it is confirmed; raises UnavailableError."""
    producer = AIOKafkaProducer(**settings.kafka.client_options(), enable_idempotence=True)
    try:
        await producer.start()
        name = topic.full_name(settings.namespace)
        await producer.send_and_wait(name, encode(record), key=key.encode(), partition=0)
    except KafkaError as error:
        raise settings.kafka.unavailable(error) from error
    finally:
        await producer.stop()
