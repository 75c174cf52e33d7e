"""How far the sink is: per partition what its group has committed, and where the log ends."""

from dataclasses import replace

from rollbus.consumers.clickhouse.store.settings import SinkSettings
from rollbus.runtime.kafka.lag import PartitionLag, open_lag
from rollbus.schemas.topics import TOPICS


async def read_sink_status(settings: SinkSettings) -> list[PartitionLag]:
    """Return every partition of the namespace's topics, named without the namespace; raises UnavailableError.

    Topics that do not exist are left out.
    """
    names = {topic.full_name(settings.namespace): topic.name for topic in TOPICS}
    async with open_lag(settings.kafka) as lag:
        sink = (await lag.read({settings.group_id: names}))[settings.group_id]
    return [replace(partition, topic=names[partition.topic]) for partition in sink.partitions]
