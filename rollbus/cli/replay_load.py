"""A replay's topics into ClickHouse: the sink's own work, ended once it has written what stood there at the beginning.

Topics that no sink has read yet may be those of a replay of a name that was used before: rows of that one go first.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollbus.consumers.clickhouse.kafka_status import PartitionLag
    from rollbus.consumers.clickhouse.settings import SinkSettings

LOOK_S = 0.5


async def load_replay(
    settings: "SinkSettings", namespace: str, progress: Callable[[int, int], None] = lambda done, of: None
) -> int:
    """Run a sink on a replay's namespace as far as its topics go now; return the rows it wrote.

    A shadow goes on writing: what it writes meanwhile is for the next time. `progress` hears offsets done and to do.
    """
    from rollbus.consumers.clickhouse.kafka_status import sink_status_async
    from rollbus.consumers.clickhouse.migrator import migrate
    from rollbus.consumers.clickhouse.namespaces import REPLAYED, delete_namespace
    from rollbus.consumers.clickhouse.sink import run_sink_async

    own = settings.model_copy(update={"namespace": namespace, "linger_ms": 100})
    first = await sink_status_async(own)
    if namespace.startswith(REPLAYED) and all(row.committed is None for row in first):
        await asyncio.to_thread(migrate, own.clickhouse)
        await asyncio.to_thread(delete_namespace, own.clickhouse, namespace)
    stop = asyncio.Event()
    running = asyncio.create_task(run_sink_async(own, stop=stop))
    try:
        behind = whole = _behind(first, first)
        while behind and not running.done():
            await asyncio.wait([running], timeout=LOOK_S)
            behind = _behind(first, await sink_status_async(own))
            progress(whole - behind, whole)
    finally:
        stop.set()
    return (await running).rows


def _behind(first: "Sequence[PartitionLag]", now: "Sequence[PartitionLag]") -> int:
    """Return how many offsets of those that were there at first are not written."""
    written = {(row.topic, row.partition): row.committed or 0 for row in now}
    return sum(max(0, row.end - max(row.begin, written.get((row.topic, row.partition), 0))) for row in first)
