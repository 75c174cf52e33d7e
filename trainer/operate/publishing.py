"""Write single records from outside the trainer's loop: evaluations, an operator's commands and promotions."""

import asyncio
from collections.abc import Sequence

from rollbus.runtime.kafka.clients import new_producer, running
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.kafka.partitions import require_topics
from rollbus.schemas.codec import encode
from rollbus.schemas.records.control import RunCommand, RunCommandName
from rollbus.schemas.records.steps import Evaluation
from rollbus.schemas.topics import RUN_LOG
from rollbus.trainer.ledger.log import Publication, announced_evaluation, names
from rollbus.trainer.settings import TrainerSettings


async def publish_evaluation(connection: KafkaConnection, namespace: str, evaluation: Evaluation) -> None:
    """Write an evaluation to its topic; writing it again is the same evaluation."""
    await publish_all(connection, namespace, announced_evaluation(evaluation))


def command_run(settings: TrainerSettings, command: RunCommandName, *, command_id: str, comment: str | None) -> None:
    """Write a command into the run's log; curriculum and trainer honour it."""
    record = RunCommand(run_id=settings.run_id, command=command, command_id=command_id, comment=comment)
    publication = Publication(RUN_LOG, settings.run_id, record)
    asyncio.run(publish_all(settings.kafka, settings.namespace, [publication]))


async def publish_all(connection: KafkaConnection, namespace: str, publications: Sequence[Publication]) -> None:
    """Write records in their order, each acknowledged before the next: readable at once, harmless to repeat."""
    await require_topics(connection, {publication.topic.full_name(namespace) for publication in publications})
    async with running(connection, new_producer(connection), what=f"publishing {names(publications)}") as producer:
        for publication in publications:
            topic = publication.topic.full_name(namespace)
            await producer.send_and_wait(topic, encode(publication.record), key=publication.key.encode())
