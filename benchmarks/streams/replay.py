"""How fast a week of the demo's traffic is decided again: times real time on one core, and what further cores give.

python -m benchmarks.streams.replay [minutes of traffic] [processes …]

The traffic has the demo's rate and shape: 1.8 tickets a second, each with seven attempts off the hot path, so eight
episodes of one turn, and a tick in every partition each second. Some minutes of it are replayed through all stages, and
a week takes as much time for each record. Where this machine has fewer cores than a replay has processes, the wall says
nothing. So the figures are of processor time: with enough cores a replay ends when the busiest process does, which is
the one that puts in order, or the lanes, which share their work evenly. What starting takes is left out.
"""

import asyncio
import json
import os
import sys
import time

from benchmarks.common import at_least, broker, cpu_seconds, run_module
from benchmarks.streams.events import Shape, warm_up
from benchmarks.streams.load import load, settings
from rollbus.schemas.records.config import AssemblyConfig, BatchingConfig, RunConfig, ScoringConfig
from rollbus.streams.pipeline import namespace_stages, run_stages
from rollbus.streams.replay.kafka.range_run import ProgressCallbacks
from rollbus.streams.replay.kafka.run import Replay
from rollbus.streams.replay.plan.plan import ReplayPlan, chain_of
from rollbus.streams.replay.plan.range import Bound
from rollbus.streams.rewards.registry import BUILT_IN
from rollbus.streams.worker.process import prepare_process

TICKETS_PER_S, ATTEMPTS, PARTITIONS = 1.8, 8, 4
TICKET = Shape(
    turns=1, prompt_tokens=150, tokens=1, text="The parcel came late and I want to know what I paid for it. " * 10
)
"""A prompt with four examples, and a team's name of one token."""
RECORDS_PER_S = TICKETS_PER_S * ATTEMPTS * TICKET.events + PARTITIONS
WEEK_S = 7 * 86_400
TARGET, TARGET_OF_CORE = 100.0, 0.85
RUN = RunConfig(batching=BatchingConfig(batches_ahead=1_000_000))
"""Nobody trains: a replay answers each batch itself."""


def main(minutes: int, processes: tuple[int, ...]) -> None:
    """Fill a topic, replay it by each number of processes, and print what a week takes."""
    episodes = int(minutes * 60 * TICKETS_PER_S) * ATTEMPTS
    at_once, stages = (
        round(TICKETS_PER_S * ATTEMPTS),
        [
            *namespace_stages(AssemblyConfig(), ScoringConfig()),
            *run_stages(RUN),
        ],
    )
    with broker() as running:
        namespace, servers = f"week-{time.time_ns()}.", running.bootstrap_servers
        loading = load(servers, namespace, episodes, at_once=at_once, shape=TICKET, stages=stages, ticks=True)
        records, size = asyncio.run(loading)
        print(f"{minutes} minutes of traffic: {records} records of {size / records:.0f} bytes, {RECORDS_PER_S:.0f}/s")
        alone_us = None
        for how in ("dry", "written"):
            for count in processes:
                arguments = "replay", servers, namespace, how, str(count)
                result = run_module(sys.executable, "benchmarks.streams.replay", *arguments)
                whole_us, own_us = (result[name] / records * 1e6 for name in ("cpu_seconds", "own_cpu_seconds"))
                show(how, count, whole_us, own_us, alone_us)
                alone_us = whole_us if count == 1 else alone_us


def show(how: str, count: int, whole_us: float, own_us: float, alone_us: float | None) -> None:
    """Print what so many processes take, and what as many cores would give."""
    if count == 1 or alone_us is None:
        times = 1e6 / whole_us / RECORDS_PER_S
        figures = f"{whole_us:.1f} CPU µs/record, a week in {WEEK_S / times / 60:.0f} minutes"
        print(at_least(f"{how}, one core, times real time", times, TARGET, figures), flush=True)
        return
    cores = count + 1
    busiest_us = max(own_us, (whole_us - own_us) / count)
    further = (alone_us / busiest_us - 1) / (cores - 1)
    parts = f"{whole_us:.1f} CPU µs/record, {own_us:.1f} of them to put in order"
    figures = f"{alone_us / busiest_us:.2f} times one core; {parts}"
    print(at_least(f"{how}, {cores} cores, of each further core", further, TARGET_OF_CORE, figures), flush=True)


async def replay(bootstrap_servers: str, namespace: str, how: str, processes: str) -> None:
    """Replay the whole topic; print the processor time from the first record on: of all processes, and of this one."""
    prepare_process()
    warm_up()
    began = None

    def note_begin(offsets: int, records: int, size_bytes: int) -> None:
        nonlocal began
        began = began or (cpu_seconds(os.getpid()), time.process_time())

    plan = ReplayPlan(
        name=f"bench-{time.time_ns()}",
        start=Bound(),
        end=Bound(),
        stages=chain_of(()),
        assembly=AssemblyConfig(),
        scoring=ScoringConfig(),
        runs=(RUN,),
        new_scoring=ScoringConfig(),
        scores="computed",
    )
    watch = ProgressCallbacks(progress=note_begin)
    replay = Replay(
        settings(bootstrap_servers, namespace), plan, registry=BUILT_IN, watch=watch, processes=int(processes)
    )
    await replay.run(dry_run=how == "dry")
    assert began is not None
    whole_s, own_s = cpu_seconds(os.getpid()) - began[0], time.process_time() - began[1]
    print(json.dumps({"cpu_seconds": whole_s, "own_cpu_seconds": own_s}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["replay"]:
        asyncio.run(replay(*sys.argv[2:]))
    else:
        numbers = [int(argument) for argument in sys.argv[1:]] or [20, 1, 2, 3, 4]
        main(numbers[0], tuple(numbers[1:]))
