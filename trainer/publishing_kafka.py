"""Write single records beside the trainer's loop: evaluations, and what an operator decides about versions."""

from collections.abc import Sequence

from aiokafka import AIOKafkaProducer

from rollbus.schemas.chunks import split
from rollbus.schemas.codec import encode
from rollbus.schemas.kafka_connection import KafkaConnection
from rollbus.schemas.steps import Evaluation
from rollbus.schemas.topics import EVALUATIONS, MAX_MESSAGE_BYTES
from rollbus.trainer.connection_kafka import kafka_errors, partition_counts
from rollbus.trainer.evaluation import evaluation_key
from rollbus.trainer.log import Publication, names


async def publish_evaluation(connection: KafkaConnection, namespace: str, evaluation: Evaluation) -> None:
    """Write an evaluation to its topic; writing it again is the same evaluation."""
    await publish_all(connection, namespace, [Publication(EVALUATIONS, evaluation_key(evaluation), evaluation)])


async def publish_all(connection: KafkaConnection, namespace: str, publications: Sequence[Publication]) -> None:
    """Write records in their order, each acknowledged before the next: readable at once, harmless to repeat."""
    await partition_counts(connection, {publication.topic.full_name(namespace) for publication in publications})
    with kafka_errors(f"publishing {names(publications)}"):
        producer = AIOKafkaProducer(
            **connection.client_options(),
            enable_idempotence=True,
            max_request_size=MAX_MESSAGE_BYTES,
            compression_type="zstd",
        )
        try:
            await producer.start()
            for publication in publications:
                topic = publication.topic.full_name(namespace)
                for frame in split(encode(publication.record)):
                    await producer.send_and_wait(topic, frame, key=publication.key.encode())
        finally:
            await producer.stop()
