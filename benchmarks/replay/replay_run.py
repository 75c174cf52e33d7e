"""A replay of the topic: `assembly` alone, as the live worker beside it, or `all` stages; written or dry.

What starting takes (the range looked up, processes started) is told apart from what a record takes.
"""

import asyncio
import json
import os
import resource
import sys
import time
from pathlib import Path

from benchmarks.replay.work import ASSEMBLY, RUN, SCORING
from benchmarks.streams.events import warm_up
from benchmarks.streams.load import settings
from rollbus.schemas.topics import BATCHES
from rollbus.streams.replay.kafka.range_run import ProgressCallbacks
from rollbus.streams.replay.kafka.run import Replay
from rollbus.streams.replay.plan.plan import ReplayPlan, chain_of
from rollbus.streams.replay.plan.range import Bound
from rollbus.streams.rewards.registry import BUILT_IN
from rollbus.streams.worker.process import prepare_process


async def run(bootstrap_servers: str, namespace: str, what: str, dry: str, processes: str) -> None:
    """Replay the whole topic; print what it took from the first record on."""
    prepare_process()
    warm_up()
    start, began, cpu, own_cpu_s, records = time.monotonic(), None, 0.0, 0.0, 0

    def count(offsets: int, read: int, size: int) -> None:
        nonlocal records, began, cpu, own_cpu_s
        if began is None:
            began, own_cpu_s = time.monotonic(), time.process_time()
            cpu = own_cpu_s + of_children()
        records += read

    plan = ReplayPlan(
        name=f"bench-{time.time_ns()}",
        start=Bound(),
        end=Bound(),
        stages=chain_of(() if what == "all" else ("assembly",)),
        assembly=ASSEMBLY,
        scoring=SCORING,
        runs=(RUN,),
        new_scoring=SCORING,
        scores="computed",
    )
    stream_settings = settings(bootstrap_servers, namespace)
    replay = Replay(
        stream_settings, plan, registry=BUILT_IN, watch=ProgressCallbacks(progress=count), processes=int(processes)
    )
    manifest = await replay.run(dry_run=dry == "dry")
    assert began is not None
    emitted = {digest.stage: digest.records_out for digest in manifest.digests}
    result = {
        "records": records,
        "seconds": time.monotonic() - began,
        "cpu_seconds": time.process_time() + of_children() - cpu,
        "own_cpu_seconds": time.process_time() - own_cpu_s,
        "start_seconds": began - start,
        "resident_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "lane_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024 if int(processes) > 1 else 0,
        "rows": replay.open_rows,
        "made": emitted | {"batches": manifest.records.get(BATCHES.name, 0)},
    }
    print(json.dumps(result))


def of_children() -> float:
    """Return the CPU time so far of the processes that were started: of those that have ended, and those at work."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    threads = Path("/proc/self/task").glob("*/children")
    stats = [Path(f"/proc/{pid}/stat").read_text() for thread in threads for pid in thread.read_text().split()]
    ticks = sum(int(field) for stat in stats for field in stat.rpartition(")")[2].split()[11:13])
    return ended.ru_utime + ended.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:6]))
