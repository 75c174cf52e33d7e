"""Go on after a loss that an operator accepts: position, changelog and a dead letter that names what is lost.

All in one transaction per partition. Only for a stopped stage: like any new owner it fences a running one.
"""

import logging
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from rollbus.schemas.codec import encode
from rollbus.schemas.drops import DeadLetter
from rollbus.schemas.errors import DataLossError
from rollbus.schemas.topics import DEAD_LETTERS
from rollbus.streams import changelog_kafka, names
from rollbus.streams.batch import Partition
from rollbus.streams.claims import Committed
from rollbus.streams.claims_kafka import committed_offset
from rollbus.streams.output_kafka import Row
from rollbus.streams.settings import StreamSettings
from rollbus.streams.topics import partitions_of
from rollbus.streams.topics_kafka import require_partitions
from rollbus.streams.transaction import Session

logger = logging.getLogger(__name__)

WRITER_ID = "repair"


async def accept_loss(
    settings: StreamSettings, stage: Any, *, now_ms: int = 0, dry_run: bool = False
) -> dict[int, tuple[int, int]]:
    """Step over records that retention deleted before the stage read them; return (first, last) lost by partition.

    Each such range becomes a dead letter of class DataLossError, without a value, dated `now_ms`. A dry run only looks.
    Raises ConfigurationError where a topic is missing, UnavailableError.
    """
    await require_partitions(settings, [stage])
    try:
        return await _accept_loss(settings, stage, now_ms, dry_run)
    except (KafkaError, OSError) as error:
        raise settings.kafka.unavailable(error) from error


async def _accept_loss(settings: StreamSettings, stage: Any, now_ms: int, dry_run: bool) -> dict[int, tuple[int, int]]:
    group = names.group_id(settings.namespace, stage.name)
    topic = stage.input.full_name(settings.namespace)
    consumer = AIOKafkaConsumer(**settings.kafka.client_options(), group_id=group, enable_auto_commit=False)
    lost = {}
    try:
        await consumer.start()
        for partition in range(partitions_of(stage.input, settings)):
            place = TopicPartition(topic, partition)
            first = (await consumer.beginning_offsets([place]))[place]
            found = await committed_offset(consumer, Partition(topic, partition))
            committed = await _position(settings, stage, partition, found)
            if committed is not None and committed < first:
                lost[partition] = (committed, first - 1)
                if dry_run:
                    continue
                await _move(settings, stage, place, found.owner if found else "", *lost[partition], now_ms)
                logger.warning("group %s accepts the loss of %s[%d] %d … %d", group, *place, *lost[partition])
    finally:
        await consumer.stop()
    return lost


async def _position(settings: StreamSettings, stage: Any, partition: int, found: Committed | None) -> int | None:
    """Return where the stage would go on: a claim says less of it than the changelog does."""
    if found is not None and found.by == "transaction":
        return found.offset
    group, topic = names.group_id(settings.namespace, stage.name), names.changelog_topic(settings.namespace, stage.name)
    described, _ = await changelog_kafka.restore(settings, topic, partition, lambda key, value: None)
    return changelog_kafka.start_position(described, found, topic=topic, partition=partition, group=group)


async def _move(
    settings: StreamSettings, stage: Any, place: TopicPartition, owner: str, first: int, last: int, now_ms: int
) -> None:
    group, position = names.group_id(settings.namespace, stage.name), last + 1
    changelog = names.changelog_topic(settings.namespace, stage.name)
    letter = DeadLetter(
        topic=place.topic,
        partition=place.partition,
        offset=first,
        timestamp_ms=now_ms,
        stage=stage.name,
        error_class=DataLossError.__name__,
        message=f"records {first} … {last} were deleted by retention before they were read; the loss was "
        "accepted by an operator",
    )
    rows = [
        Row(changelog, place.partition, *changelog_kafka.position_row(position)),
        Row(DEAD_LETTERS.full_name(settings.namespace), 0, None, encode(letter)),
    ]
    session = Session(settings, group, names.transactional_id(settings.namespace, stage.name, WRITER_ID))
    try:
        await session.start()
        if owner:
            await session.fence(owner)
        await session.commit(Partition(*place), position, rows)
    finally:
        await session.stop()
