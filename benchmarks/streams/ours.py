"""Assembly in a rollbus worker: state in a changelog, exactly once."""

import asyncio
import json
import resource
import sys
import time
from collections.abc import Iterable

from benchmarks.streams.events import warm_up
from benchmarks.streams.load import settings
from rollbus.schemas.records.config import AssemblyConfig
from rollbus.streams.stages.assembly.stage import AssemblyStage
from rollbus.streams.stages.assembly.state import AssemblyState
from rollbus.streams.state.stage import Incoming, Outgoing
from rollbus.streams.worker.process import prepare_process
from rollbus.streams.worker.worker import serve


class TimedStage(AssemblyStage):
    """Assembly that knows when its first record came, as the other variants do.

    The first call replaces `step` on the instance, so that later calls cost nothing more.
    """

    began, cpu = 0.0, 0.0

    def step(self, state: AssemblyState, incoming: Incoming) -> Iterable[Outgoing]:
        """Note the time, once."""
        self.began, self.cpu = time.monotonic(), time.process_time()
        self.step = super().step  # type: ignore[method-assign]
        return self.step(state, incoming)


async def run(bootstrap_servers: str, namespace: str, records: int) -> None:
    """Work until all records are committed; print the time and the CPU time since the first record."""
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
    took = time.monotonic() - stage.began
    metrics = [runner.metrics for runner in workers[0].apps[0].runners.values()]
    result = {
        "seconds": took,
        "cpu_seconds": time.process_time() - stage.cpu,
        "transactions": sum(runner_metrics.transactions for runner_metrics in metrics),
        "step_s": sum(runner_metrics.step_s for runner_metrics in metrics),
        "commit_s": sum(runner_metrics.commit_s for runner_metrics in metrics),
        "rows": sum(runner_metrics.changelog_rows for runner_metrics in metrics),
        "resident_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    stop.set()
    await serving
    print(json.dumps(result))


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], int(sys.argv[3])))
