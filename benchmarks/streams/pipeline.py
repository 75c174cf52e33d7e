"""A worker with the stages on the way from event to group, as a process, until its standard input ends.

python -m benchmarks.streams.pipeline <bootstrap servers> <namespace> <settings as JSON>
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.streams.load import settings
from rollbus.schemas.records.config import AssemblyConfig, GroupingConfig, RunConfig, ScoringConfig
from rollbus.schemas.records.control import ConfigApplied
from rollbus.streams.pipeline import namespace_stages, run_stages
from rollbus.streams.state.ticker import config_applied
from rollbus.streams.worker.app import StageApp
from rollbus.streams.worker.process import prepare_process
from rollbus.streams.worker.worker import Worker, serve

STAGES = ("assembly", "scoring", "grouping.main", "alias")
RUN = RunConfig(grouping=GroupingConfig(reward_wait_ms=0, reward_grace_ms=0))
"""No score waits for another reward: that is how long users take, and not the stages."""


def make_stages() -> list[Any]:
    """Return assembly, scoring by feedback, and grouping, with the aliases that assembly reads."""
    stages = [*namespace_stages(AssemblyConfig(), ScoringConfig()), *run_stages(RUN)]
    return [stage for stage in stages if stage.name in STAGES]


def configurations() -> list[ConfigApplied]:
    """Return the stages' configurations: with them a tick waits for the stages before, as on any other worker."""
    return [
        config_applied("assembly", None, AssemblyConfig()),
        config_applied("scoring", None, ScoringConfig()),
        config_applied("grouping", "main", RunConfig()),
    ]


@asynccontextmanager
async def start_worker(bootstrap_servers: str, namespace: str, changes: dict[str, Any]) -> AsyncIterator[None]:
    """Run a worker whose partitions are open when the block begins; it is stopped at the end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.streams.pipeline", bootstrap_servers, namespace, json.dumps(changes)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    if not await process.stdout.readline():
        sys.exit("the worker did not start")
    yield
    await process.communicate(b"")


def _is_open(app: StageApp) -> bool:
    return bool(app.runners) and all(runner.ready for runner in app.runners.values())


async def run(bootstrap_servers: str, namespace: str, changes: dict[str, Any]) -> None:
    """Print a line once all partitions are open; serve until told to stop."""
    prepare_process()
    stop, workers = asyncio.Event(), list[Worker]()
    stream_settings = settings(bootstrap_servers, namespace).model_copy(update=changes)
    serving = asyncio.create_task(
        serve(stream_settings, make_stages(), configurations(), stop=stop, on_ready=workers.append)
    )
    while not (workers and all(map(_is_open, workers[0].apps))):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    print("open", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    stop.set()
    await serving


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
