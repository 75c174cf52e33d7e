"""A replay of the topic: `assembly` alone, as the live worker beside it, or `all` stages; written or dry."""

import asyncio
import json
import resource
import sys
import time

from benchmarks.streams.events import warm_up
from benchmarks.streams.load import settings
from rollbus.schemas.config import AssemblyConfig, RunConfig, ScoringConfig
from rollbus.streams.process import prepare_process
from rollbus.streams.replay.passage_kafka import Watch
from rollbus.streams.replay.plan import ReplayPlan, chain_of
from rollbus.streams.replay.range import Bound
from rollbus.streams.replay.run_kafka import Replay
from rollbus.streams.rewards.registry import BUILT_IN


async def run(bootstrap_servers: str, namespace: str, what: str, dry: str) -> None:
    """Replay the whole topic; print what it took from the first read on."""
    prepare_process()
    warm_up()
    began, cpu, records = 0.0, 0.0, 0

    def begin(ranges: object) -> None:
        nonlocal began, cpu
        began, cpu = time.monotonic(), time.process_time()

    def count(offsets: int, read: int, size: int) -> None:
        nonlocal records
        records += read

    plan = ReplayPlan(
        name=f"bench-{time.time_ns()}",
        start=Bound(),
        end=Bound(),
        stages=chain_of(() if what == "all" else ("assembly",)),
        assembly=AssemblyConfig(),
        scoring=ScoringConfig(),
        runs=(RunConfig(),),
        new_scoring=ScoringConfig(),
        scores="computed",
    )
    made = settings(bootstrap_servers, namespace)
    replay = Replay(made, plan, registry=BUILT_IN, watch=Watch(begin=begin, progress=count))
    await replay.run(dry_run=dry == "dry")
    took, used = time.monotonic() - began, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    result = {"records": records, "seconds": took, "cpu_seconds": used, "resident_mb": peak, "rows": replay.open_rows}
    print(json.dumps(result))


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:5]))
