"""Go on after a loss that an operator accepts: a stage's position and its changelog move together, in one transaction.

Only for a stopped stage: like any new owner it fences a running one.
"""

import logging
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from rollbus.streams import changelog_kafka, names
from rollbus.streams.output_kafka import Row, new_producer, stop_producer, write
from rollbus.streams.settings import StreamSettings
from rollbus.streams.topics import partitions_of

logger = logging.getLogger(__name__)


async def accept_loss(settings: StreamSettings, stage: Any) -> dict[int, tuple[int, int]]:
    """Step over records that retention deleted before the stage read them; return (first, last) lost by partition."""
    group = names.group_id(settings.namespace, stage.name)
    topic = stage.input.full_name(settings.namespace)
    consumer = AIOKafkaConsumer(**settings.kafka.client_options(), group_id=group, enable_auto_commit=False)
    lost = {}
    try:
        await consumer.start()
        for partition in range(partitions_of(stage.input, settings)):
            place = TopicPartition(topic, partition)
            first = (await consumer.beginning_offsets([place]))[place]
            committed = await consumer.committed(place)
            if committed is not None and committed < first:
                await _move(settings, stage, place, first, group)
                lost[partition] = (committed, first - 1)
                logger.warning("group %s accepts the loss of %s[%d] %d … %d", group, *place, committed, first - 1)
    finally:
        await consumer.stop()
    return lost


async def _move(settings: StreamSettings, stage: Any, place: TopicPartition, position: int, group: str) -> None:
    changelog = names.changelog_topic(settings.namespace, stage.name)
    row = Row(changelog, place.partition, *changelog_kafka.position_row(position))
    producer = new_producer(
        settings, names.transactional_id(settings.namespace, stage.name, stage.input, place.partition)
    )
    try:
        await producer.start()
        await producer.begin_transaction()
        await write(producer, [row])
        await producer.send_offsets_to_transaction({place: position}, group)
        await producer.commit_transaction()
    finally:
        await stop_producer(producer)
