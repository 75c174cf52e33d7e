"""Continue after a loss that an operator accepts: write position, changelog and a dead letter that names the loss.

What a stage has read may be lost in three ways: retention deleted records before they were read; the input is another
log (made again, restored from a backup, on another cluster); offset and changelog do not fit, since a tool set one of
them. All is written in one transaction per partition. Only for a stopped stage: like any new owner it fences a running
worker.
"""

import logging
from typing import Any

from aiokafka import TopicPartition

from rollbus.runtime.kafka.clients import new_consumer, running
from rollbus.runtime.kafka.log_id import read_log_ids
from rollbus.runtime.kafka.positions import loss_letter, read_marked
from rollbus.runtime.kafka.reading import read_bounds
from rollbus.runtime.kafka.shared_reading import SharedReading
from rollbus.runtime.kafka.writing import Row
from rollbus.runtime.log_mark import AcceptedLoss, LogId, LogMark, find_loss
from rollbus.schemas.codec import encode
from rollbus.schemas.topics import DEAD_LETTERS
from rollbus.streams.exactly_once import changelog
from rollbus.streams.exactly_once.batch import Partition
from rollbus.streams.exactly_once.claims import Committed, start_of
from rollbus.streams.exactly_once.claims_on_broker import committed_offset
from rollbus.streams.exactly_once.transaction import ProducerSession
from rollbus.streams.kafka import names
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics import partitions_of
from rollbus.streams.kafka.topics_on_broker import require_partitions

logger = logging.getLogger(__name__)

WRITER_ID = "repair"


async def accept_loss(
    settings: StreamSettings, stage: Any, *, now_ms: int = 0, dry_run: bool = False
) -> dict[int, AcceptedLoss]:
    """Let a stage go on after a loss; return what was lost by partition.

    Each loss becomes a dead letter of class DataLossError, without a value, dated `now_ms`. A dry run only reads.
    Raises ConfigurationError if a topic is missing, UnavailableError.
    """
    await require_partitions(settings, [stage])
    group = names.group_id(settings.namespace, stage.name)
    topic = stage.input.full_name(settings.namespace)
    losses, reading = {}, SharedReading(settings.kafka)
    try:
        async with running(settings.kafka, new_consumer(settings.kafka, group_id=group)) as consumer:
            log = (await read_log_ids(consumer, [topic]))[topic]
            for partition in range(partitions_of(stage.input, settings)):
                place = TopicPartition(topic, partition)
                bounds = (await read_bounds(consumer, [place]))[place]
                last = await committed_offset(consumer, Partition(topic, partition))
                loss = await _find_loss(settings, stage, Partition(topic, partition), last, log, bounds, reading)
                if loss is None:
                    continue
                losses[partition] = loss
                if not dry_run:
                    await _write_position(settings, stage, place, last.owner if last else "", loss, now_ms)
                    logger.warning("group %s accepts in %s[%d]: %s", group, *place, loss.why)
    finally:
        await reading.close()
    return losses


async def _find_loss(
    settings: StreamSettings,
    stage: Any,
    partition: Partition,
    last: Committed | None,
    log: LogId,
    bounds: tuple[int, int],
    reading: SharedReading,
) -> AcceptedLoss | None:
    changelog_topic = names.changelog_topic(settings.namespace, stage.name)
    described, _, mark = await changelog.restore(reading, changelog_topic, partition.partition, lambda key, value: None)
    try:
        committed = start_of(described, last)
    except ValueError:
        return _find_misfit(described, last, mark or LogMark(*log), bounds)
    if committed is None:
        return None
    record = await read_marked(reading, TopicPartition(*partition), mark)
    return find_loss(committed, mark, log, bounds, record)


def _find_misfit(described: int | None, last: Committed | None, mark: LogMark, bounds: tuple[int, int]) -> AcceptedLoss:
    """Return how to go on if offset and changelog do not fit: from the state, or from the offset if that is gone."""
    assert last is not None  # without an offset the changelog decides
    if described is None:
        resumes_at = max(last.offset, bounds[0])
        why = f"the changelog is empty, and {last.offset} was committed: open work from before is forgotten"
        return AcceptedLoss(why, resumes_at, resumes_at, resumes_at - 1, mark)
    why = f"the offset was set to {last.offset}, and the state is that of {described}: reading goes on there"
    return AcceptedLoss(why, described, described, described - 1, mark)


async def _write_position(
    settings: StreamSettings, stage: Any, place: TopicPartition, owner: str, loss: AcceptedLoss, now_ms: int
) -> None:
    group = names.group_id(settings.namespace, stage.name)
    changelog_topic = names.changelog_topic(settings.namespace, stage.name)
    letter = loss_letter(place, loss, stage=stage.name, now_ms=now_ms)
    rows = [
        Row(changelog_topic, place.partition, *changelog.position_row(loss.resumes_at, loss.mark)),
        Row(DEAD_LETTERS.full_name(settings.namespace), 0, None, encode(letter)),
    ]
    session = ProducerSession(settings, group, names.transactional_id(settings.namespace, stage.name, WRITER_ID))
    try:
        await session.start()
        if owner:
            await session.fence(owner)
        await session.commit(Partition(*place), loss.resumes_at, rows)
    finally:
        await session.stop()
