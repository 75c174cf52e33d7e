"""Load a replay's topics into ClickHouse: run the sink until it has written what was there at the beginning.

If no sink has read the topics yet, an earlier replay may have had the same name: its rows are deleted first.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollbus.consumers.clickhouse.store.settings import SinkSettings

LOOK_S = 0.5


async def load_replay(
    settings: "SinkSettings", namespace: str, progress: Callable[[int, int], None] = lambda done, of: None
) -> int:
    """Run a sink on a replay's namespace up to the present end of its topics; return the number of rows written.

    What a shadow writes meanwhile is loaded the next time. `progress` receives the offsets done and their total.
    """
    from rollbus.consumers.clickhouse.maintain.forget import REPLAYED, delete_namespace
    from rollbus.consumers.clickhouse.sink.sink import run_sink_async
    from rollbus.consumers.clickhouse.sink.status import read_sink_status
    from rollbus.consumers.clickhouse.store.migrator import migrate
    from rollbus.runtime.kafka.lag import count_behind

    replay_settings = settings.model_copy(update={"namespace": namespace, "linger_ms": 100})
    first = await read_sink_status(replay_settings)
    if namespace.startswith(REPLAYED) and all(row.committed is None for row in first):
        await asyncio.to_thread(migrate, replay_settings.clickhouse)
        await asyncio.to_thread(delete_namespace, replay_settings.clickhouse, namespace)
    stop = asyncio.Event()
    running = asyncio.create_task(run_sink_async(replay_settings, stop=stop))
    try:
        behind = total = count_behind(first, first)
        while behind and not running.done():
            await asyncio.wait([running], timeout=LOOK_S)
            behind = count_behind(first, await read_sink_status(replay_settings))
            progress(total - behind, total)
    finally:
        stop.set()
    return (await running).rows
