"""A replay's topics into ClickHouse: the sink's own work, ended once it has caught up."""

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollbus.consumers.clickhouse.settings import SinkSettings

LOOK_S = 0.5


async def load_replay(settings: "SinkSettings", namespace: str) -> int:
    """Run a sink on a replay's namespace until nothing is left to read; return the rows it wrote."""
    from rollbus.consumers.clickhouse.kafka_status import sink_status
    from rollbus.consumers.clickhouse.sink import run_sink_async

    own = settings.model_copy(update={"namespace": namespace, "linger_ms": 100})
    stop = asyncio.Event()
    running = asyncio.create_task(run_sink_async(own, stop=stop))
    try:
        while not running.done():
            await asyncio.wait([running], timeout=LOOK_S)
            lags = await asyncio.to_thread(sink_status, own)
            if lags and all(row.end == 0 or row.lag == 0 for row in lags):
                break
    finally:
        stop.set()
    return (await running).rows
