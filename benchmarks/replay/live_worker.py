"""The live worker over the same topic: `assembly` alone, or `all` stages of a whole replay, in one process.

It works off the backlog until every stage has come to rest: the clock goes from the first record to the last commit of
any stage. What it made is told, so that nobody compares it with a replay that did something else.
"""

import asyncio
import json
import resource
import sys
import time
from contextlib import aclosing

from benchmarks.replay.work import ASSEMBLY, CountsByStage, live_stages
from benchmarks.streams.events import warm_up
from benchmarks.streams.load import settings
from benchmarks.streams.ours import TimedStage
from rollbus.schemas.codec import record_name
from rollbus.schemas.records.groups import TrainingBatch
from rollbus.schemas.topics import BATCHES
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.replay.kafka.source import read_whole
from rollbus.streams.worker.process import prepare_process
from rollbus.streams.worker.worker import Worker, serve

LOOK_S = 0.02
REST_S = 3.0
"""So long no stage takes in a record before all are said to be at their ends."""


async def run(bootstrap_servers: str, namespace: str, what: str, records: int) -> None:
    """Work until the last record of every stage's input is committed; print what it took from the first one on."""
    prepare_process()
    warm_up()
    stop, workers, first = asyncio.Event(), list[Worker](), TimedStage(ASSEMBLY)
    stream_settings = settings(bootstrap_servers, namespace).model_copy(update={"tick_interval_ms": 3_600_000})
    serving = asyncio.create_task(serve(stream_settings, live_stages(what, first), stop=stop, on_ready=workers.append))
    while not workers:  # noqa: ASYNC110
        await asyncio.sleep(LOOK_S)
    ended, cpu = await at_rest(workers[0], records)
    result = {
        "seconds": ended - first.began,
        "cpu_seconds": cpu - first.cpu,
        "resident_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "made": await what_was_made(workers[0], stream_settings),
    }
    stop.set()
    await serving
    print(json.dumps(result))


async def at_rest(worker: Worker, records: int) -> tuple[float, float]:
    """Return when the last record was committed, by the clock and in CPU time."""
    taken, rest_times = 0, (time.monotonic(), time.process_time())
    while taken < records or time.monotonic() - rest_times[0] < REST_S:
        await asyncio.sleep(LOOK_S)
        now = sum(runner.metrics.records for app in worker.apps for runner in app.runners.values())
        if now != taken:
            taken, rest_times = now, (time.monotonic(), time.process_time())
    return rest_times


async def what_was_made(worker: Worker, stream_settings: StreamSettings) -> CountsByStage:
    """Return what each stage emitted; batches are counted where they stand."""
    emitted = {app.stage.name: sum(runner.metrics.outputs for runner in app.runners.values()) for app in worker.apps}
    async with aclosing(read_whole(stream_settings, BATCHES)) as raw_records:
        batches = [raw async for raw in raw_records if record_name(raw.value) == TrainingBatch.__name__]
    return emitted | {"batches": len(batches)}


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
