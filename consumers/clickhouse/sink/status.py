"""How far the sink is: per partition what its group has committed, and where the log ends; and waiting for it."""

import asyncio
import time
from dataclasses import replace

from rollbus.consumers.clickhouse.store.settings import SinkSettings
from rollbus.runtime.kafka.lag import LagReader, PartitionLag, count_behind, open_lag
from rollbus.schemas.topics import TOPICS

PATIENCE_S, PAUSE_S = 10.0, 0.2
"""A sink that writes nothing for so long has ended, or its ClickHouse is away; between two looks."""
ROUNDS = 2
"""In the second the sink writes what the workers have made of the records of the first."""


async def read_sink_status(settings: SinkSettings) -> list[PartitionLag]:
    """Return every partition of the namespace's topics, named without the namespace; raises UnavailableError.

    Topics that do not exist are left out.
    """
    names = {topic.full_name(settings.namespace): topic.name for topic in TOPICS}
    async with open_lag(settings.kafka) as lag:
        sink = (await lag.read({settings.group_id: names}))[settings.group_id]
    return [replace(partition, topic=names[partition.topic]) for partition in sink.partitions]


async def wait_for_sink(settings: SinkSettings) -> int:
    """Wait until the sink has written the log as it is now; return how many records it lacks.

    That is more than 0 at once if no sink runs, and after `PATIENCE_S` if it does not go on. Raises UnavailableError.
    """
    async with open_lag(settings.kafka) as lag:
        for _ in range(ROUNDS):
            if behind := await _wait_for_round(settings, lag):
                return behind
    return 0


async def _wait_for_round(settings: SinkSettings, lag: LagReader) -> int:
    names = {topic.full_name(settings.namespace): topic.name for topic in TOPICS}
    first: tuple[PartitionLag, ...] = ()
    behind, deadline = 0, 0.0
    while True:
        sink = (await lag.read({settings.group_id: names}))[settings.group_id]
        first = first or sink.partitions
        behind_now = count_behind(first, sink.partitions)
        if not behind_now:
            return 0
        if behind_now != behind:
            behind, deadline = behind_now, time.monotonic() + PATIENCE_S
        if not sink.members or time.monotonic() > deadline:
            return behind
        await asyncio.sleep(PAUSE_S)
