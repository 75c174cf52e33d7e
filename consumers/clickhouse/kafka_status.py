"""How far the sink is: per partition what its group has committed, and where the log ends."""

import asyncio
from dataclasses import dataclass

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from rollbus.consumers.clickhouse.settings import SinkSettings
from rollbus.schemas.offsets_kafka import committed_offsets
from rollbus.schemas.starting_kafka import start_whole
from rollbus.schemas.stopping_kafka import stop_quietly
from rollbus.schemas.topics import TOPICS


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition as the sink's group stands to it."""

    topic: str
    """Without the namespace."""
    partition: int
    committed: int | None
    """The next offset to write; None before the first commit."""
    begin: int
    end: int

    @property
    def lag(self) -> int:
        """Offsets that are in the log and not in ClickHouse; transaction markers count, too."""
        return max(0, self.end - max(self.begin, self.committed or 0))


def sink_status(settings: SinkSettings) -> list[PartitionLag]:
    """Return every partition of the namespace's topics; topics that do not exist are left out."""
    return asyncio.run(sink_status_async(settings))


async def sink_status_async(settings: SinkSettings) -> list[PartitionLag]:
    """Return what `sink_status` does, inside a running loop; raises UnavailableError."""
    consumer = AIOKafkaConsumer(**settings.kafka.client_options(), isolation_level="read_committed")
    admin = AIOKafkaAdminClient(**settings.kafka.client_options())
    try:
        await start_whole(consumer.start)
        await start_whole(admin.start)
        names = {topic.full_name(settings.namespace): topic.name for topic in TOPICS}
        existing = sorted(set(await admin.list_topics()) & set(names))
        if not existing:
            return []
        partitions = sorted(
            TopicPartition(topic["topic"], partition["partition"])
            for topic in await admin.describe_topics(existing)
            for partition in topic["partitions"]
        )
        committed = await committed_offsets(admin, settings.group_id)
        begins = await consumer.beginning_offsets(partitions)
        ends = await consumer.end_offsets(partitions)
    except KafkaError as error:
        raise settings.kafka.unavailable(error) from error
    finally:
        await stop_quietly(admin.close, consumer.stop)
    return [
        PartitionLag(
            topic=names[tp.topic],
            partition=tp.partition,
            committed=committed[tp].offset if tp in committed and committed[tp].offset >= 0 else None,
            begin=begins[tp],
            end=ends[tp],
        )
        for tp in partitions
    ]
