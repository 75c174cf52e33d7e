"""Let the sink go on where a partition is not the log that it has read: offsets in Kafka, marks in `sink_ranges`."""

import asyncio
from contextlib import closing

from aiokafka import TopicPartition

from rollbus.consumers.clickhouse.maintain.forget import mutate_where
from rollbus.consumers.clickhouse.maintain.stored_ranges import read_range_marks
from rollbus.consumers.clickhouse.sink.kafka_source import sink_positions
from rollbus.consumers.clickhouse.sink.ranges import STAGE
from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.migrator import RANGES
from rollbus.consumers.clickhouse.store.settings import SinkSettings
from rollbus.runtime.kafka.partitions import places_of
from rollbus.runtime.log_mark import AcceptedLoss
from rollbus.schemas.topics import TOPICS


async def accept_loss(settings: SinkSettings, *, now_ms: int, dry_run: bool) -> dict[TopicPartition, AcceptedLoss]:
    """Let the sink go on in logs that are not the ones it has read; return what was lost by partition.

    What the database has noted of another log is deleted, since the new one has other records at the same offsets; the
    rows stay. A dry run only reads. Raises ConfigurationError while a sink runs.
    """
    names = {topic.full_name(settings.namespace): topic.name for topic in TOPICS}
    places = await places_of(settings.kafka, names)
    with closing(ClickHouse(settings.clickhouse)) as client:
        marks = await asyncio.to_thread(read_range_marks, client, settings.namespace)
        witnesses = {
            place: marks[names[place.topic], place.partition]
            for place in places
            if (names[place.topic], place.partition) in marks
        }
        positions = sink_positions(settings)
        losses = await positions.accept(
            places, witnesses, namespace=settings.namespace, stage=STAGE, now_ms=now_ms, dry_run=dry_run
        )
        for place, loss in ({} if dry_run else losses).items():
            topic = names[place.topic]
            where = f"namespace = '{settings.namespace}' AND kafka_topic = '{topic}' AND kafka_partition = {place[1]}"
            mutation = "DELETE" if loss.is_other_log else "UPDATE log = ''"
            await asyncio.to_thread(mutate_where, client, RANGES, f"{mutation} WHERE {where}", where)
    return losses
