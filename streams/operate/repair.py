"""Continue after a loss that an operator accepts: write position, changelog and a dead letter that names the loss.

All in one transaction per partition. Only for a stopped stage: like any new owner it fences a running worker.
"""

import logging
from typing import Any

from aiokafka import TopicPartition

from rollbus.runtime.kafka.clients import new_consumer, running
from rollbus.runtime.kafka.writing import Row
from rollbus.schemas.codec import encode
from rollbus.schemas.errors import DataLossError
from rollbus.schemas.records.drops import DeadLetter
from rollbus.schemas.topics import DEAD_LETTERS
from rollbus.streams.exactly_once import changelog
from rollbus.streams.exactly_once.batch import Partition
from rollbus.streams.exactly_once.claims import Committed
from rollbus.streams.exactly_once.claims_on_broker import committed_offset
from rollbus.streams.exactly_once.shared_reading import SharedReading
from rollbus.streams.exactly_once.transaction import ProducerSession
from rollbus.streams.kafka import names
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics import partitions_of
from rollbus.streams.kafka.topics_on_broker import require_partitions

logger = logging.getLogger(__name__)

WRITER_ID = "repair"


async def accept_loss(
    settings: StreamSettings, stage: Any, *, now_ms: int = 0, dry_run: bool = False
) -> dict[int, tuple[int, int]]:
    """Skip records that retention deleted before the stage read them; return (first, last) lost by partition.

    Each such range becomes a dead letter of class DataLossError, without a value, dated `now_ms`. A dry run only reads.
    Raises ConfigurationError if a topic is missing, UnavailableError.
    """
    await require_partitions(settings, [stage])
    group = names.group_id(settings.namespace, stage.name)
    topic = stage.input.full_name(settings.namespace)
    lost = {}
    async with running(settings.kafka, new_consumer(settings.kafka, group_id=group)) as consumer:
        for partition in range(partitions_of(stage.input, settings)):
            place = TopicPartition(topic, partition)
            first = (await consumer.beginning_offsets([place]))[place]
            last = await committed_offset(consumer, Partition(topic, partition))
            committed = await _position(settings, stage, partition, last)
            if committed is not None and committed < first:
                lost[partition] = (committed, first - 1)
                if dry_run:
                    continue
                await _write_position(settings, stage, place, last.owner if last else "", *lost[partition], now_ms)
                logger.warning("group %s accepts the loss of %s[%d] %d … %d", group, *place, *lost[partition])
    return lost


async def _position(settings: StreamSettings, stage: Any, partition: int, last: Committed | None) -> int | None:
    """Return the position that the stage would continue from; after a claim the changelog decides."""
    if last is not None and last.by == "transaction":
        return last.offset
    group, topic = names.group_id(settings.namespace, stage.name), names.changelog_topic(settings.namespace, stage.name)
    reading = SharedReading(settings.kafka)
    try:
        described, _ = await changelog.restore(reading, topic, partition, lambda key, value: None)
    finally:
        await reading.close()
    return changelog.agreed_position(described, last, topic=topic, partition=partition, group=group)


async def _write_position(
    settings: StreamSettings, stage: Any, place: TopicPartition, owner: str, first: int, last: int, now_ms: int
) -> None:
    group, position = names.group_id(settings.namespace, stage.name), last + 1
    changelog_topic = names.changelog_topic(settings.namespace, stage.name)
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
        Row(changelog_topic, place.partition, *changelog.position_row(position)),
        Row(DEAD_LETTERS.full_name(settings.namespace), 0, None, encode(letter)),
    ]
    session = ProducerSession(settings, group, names.transactional_id(settings.namespace, stage.name, WRITER_ID))
    try:
        await session.start()
        if owner:
            await session.fence(owner)
        await session.commit(Partition(*place), position, rows)
    finally:
        await session.stop()
