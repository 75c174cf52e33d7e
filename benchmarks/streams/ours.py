"""Assembly in a rollbus worker: state in a changelog, exactly once."""

import asyncio
import json
import sys
import time
from collections.abc import Iterable
from contextlib import aclosing

from aiokafka import TopicPartition

from benchmarks.streams.events import warm_up
from benchmarks.streams.load import settings
from rollbus.runtime.kafka.reading import read_from
from rollbus.schemas.records.config import AssemblyConfig
from rollbus.streams.kafka.names import changelog_topic
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.stages.assembly.stage import AssemblyStage
from rollbus.streams.stages.assembly.state import AssemblyState
from rollbus.streams.state.stage import Incoming, Outgoing
from rollbus.streams.worker.process import prepare_process
from rollbus.streams.worker.worker import serve


class TimedStage(AssemblyStage):
    """Assembly that knows when its first record came, as the other variant does.

    The first call replaces `step` on the instance, so that later calls cost nothing more.
    """

    began, cpu = 0.0, 0.0

    def step(self, state: AssemblyState, incoming: Incoming) -> Iterable[Outgoing]:
        """Note the time, once."""
        self.began, self.cpu = time.monotonic(), time.process_time()
        self.step = super().step  # type: ignore[method-assign]
        return self.step(state, incoming)


async def run(bootstrap_servers: str, namespace: str, records: int) -> None:
    """Work until all records are committed; print what it took since the first one, and the size of the changelog."""
    prepare_process()
    warm_up()
    stop, workers, stage = asyncio.Event(), [], TimedStage(AssemblyConfig())
    stream_settings = settings(bootstrap_servers, namespace).model_copy(update={"tick_interval_ms": 3_600_000})
    serving = asyncio.create_task(serve(stream_settings, [stage], stop=stop, on_ready=workers.append))
    while not workers:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    done = 0
    while done < records:
        await asyncio.sleep(0.02)
        done = sum(runner.metrics.records for runner in workers[0].apps[0].runners.values())
    result = {"seconds": time.monotonic() - stage.began, "cpu_seconds": time.process_time() - stage.cpu}
    stop.set()
    await serving
    print(json.dumps(result | {"changelog_bytes": await measure_changelog(stream_settings, stage.name)}))


async def measure_changelog(stream_settings: StreamSettings, stage: str) -> int:
    """Return the bytes of the keys and values that a stage has written to its changelog."""
    topic = changelog_topic(stream_settings.namespace, stage)
    starts = {TopicPartition(topic, number): 0 for number in range(stream_settings.event_partitions)}
    async with aclosing(read_from(stream_settings.kafka, starts)) as rows:
        return sum([len(row.key) + len(row.value or b"") async for row in rows])


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], int(sys.argv[3])))
