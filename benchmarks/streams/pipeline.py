"""A worker with stages on the way from event to group, until its standard input ends; then what it did, as JSON.

python -m benchmarks.streams.pipeline <bootstrap servers> <namespace> [settings as JSON] [stages]
"""

import asyncio
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.streams.load import settings
from rollbus.schemas.ids import canonical_json
from rollbus.schemas.records.config import AssemblyConfig, GroupingConfig, RunConfig, ScoringConfig
from rollbus.schemas.records.control import ConfigApplied
from rollbus.streams.pipeline import namespace_stages, run_stages
from rollbus.streams.worker.app import StageApp
from rollbus.streams.worker.process import prepare_process
from rollbus.streams.worker.worker import Worker, serve

STAGES = ("assembly", "scoring", "grouping.main")
RUN = RunConfig(grouping=GroupingConfig(reward_wait_ms=0, reward_grace_ms=0))
"""No score waits for another reward: that is how long users take, and not the stages."""


def three_stages(names: tuple[str, ...] = STAGES) -> list[Any]:
    """Return assembly, scoring by feedback, and grouping, or those of them that are named."""
    assembly = AssemblyConfig()
    every = [*namespace_stages(assembly, ScoringConfig()), *run_stages(RUN)]
    return [stage for stage in every if stage.name in names]


def configurations() -> list[ConfigApplied]:
    """Return the stages' configurations: with them a tick waits for the stages before, as on any other worker."""
    configs = (
        ("assembly", None, AssemblyConfig()),
        ("scoring", None, ScoringConfig()),
        ("grouping", "main", RunConfig()),
    )
    return [
        ConfigApplied(stage=stage, run_id=run, config_hash=config.config_hash(),
                      content=canonical_json(config.model_dump(mode="json")))
        for stage, run, config in configs
    ]  # fmt: skip


def _is_open(app: StageApp) -> bool:
    return bool(app.runners) and all(runner.ready for runner in app.runners.values())


def report(worker: Worker) -> dict[str, dict[str, float]]:
    """Return what each stage has done, over its partitions."""
    fields = ("records", "transactions", "step_s", "commit_s", "restored_rows")
    return {
        app.stage.name: {name: sum(getattr(r.metrics, name) for r in app.runners.values()) for name in fields}
        for app in worker.apps
    }


def resident_bytes() -> int:
    """Return how much memory the process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def run(bootstrap_servers: str, namespace: str, changes: dict[str, Any], names: tuple[str, ...]) -> None:
    """Once all partitions are open, say how long the slowest took and the memory; serve until told to stop."""
    prepare_process()
    stop, workers = asyncio.Event(), list[Worker]()
    stream_settings = settings(bootstrap_servers, namespace).model_copy(update=changes)
    stages = [*three_stages(names), *three_stages(("alias",))] if "assembly" in names else three_stages(names)
    serving = asyncio.create_task(serve(stream_settings, stages, configurations(), stop=stop, on_ready=workers.append))
    while not (workers and all(map(_is_open, workers[0].apps))):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    open_s = max(runner.metrics.open_s for app in workers[0].apps for runner in app.runners.values())
    print(json.dumps({"open_s": open_s, "resident_bytes": resident_bytes()}), flush=True)
    began, cpu = time.monotonic(), time.process_time()
    await asyncio.to_thread(sys.stdin.read)
    done: dict[str, Any] = report(workers[0])
    done["seconds"], done["cpu_seconds"] = time.monotonic() - began, time.process_time() - cpu
    done["resident_bytes"] = resident_bytes()
    stop.set()
    await serving
    print(json.dumps(done))


if __name__ == "__main__":
    given = [*sys.argv[3:], "{}", ",".join(STAGES)][:2] if len(sys.argv) < 5 else sys.argv[3:5]
    asyncio.run(run(sys.argv[1], sys.argv[2], json.loads(given[0]), tuple(given[1].split(","))))
