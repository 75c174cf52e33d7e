"""Runs on a real broker here become costs, and others, which the costs were not fitted to, say how wrong they are.

A load is run twice: for real, and simulated as one machine with this one's cores. The simulation counts transactions,
markers and records; `fitting` divides the processor time of the real processes among them. The stage code is timed in
this process, while the simulation runs it.
"""

import asyncio
import json
import math
import random
import time
from dataclasses import asdict, replace
from itertools import islice

from benchmarks.scale.cluster import Cluster, Simulation
from benchmarks.scale.costs import Costs
from benchmarks.scale.fitting import HERE, Load, Measured, fit, simulate
from benchmarks.streams.broker import Broker
from benchmarks.streams.events import EVENTS, warm_up
from benchmarks.streams.latency import (
    CAPACITY_EVENTS,
    GROUPS_AHEAD,
    MEMBERS,
    SETTLE_S,
    Reader,
    prepare,
    quantile,
    send,
    traffic,
    until_complete,
)
from benchmarks.streams.pipeline import STAGES
from benchmarks.streams.scale import measure_restoring
from benchmarks.streams.worker_process import a_worker
from rollbus.schemas.records.config import AssemblyConfig, RunConfig, ScoringConfig
from rollbus.streams.pipeline import namespace_stages, run_stages

RATE = 300.0
OPEN_EPISODES = 10_000
"""Restored, to learn what a row costs."""
ALL_STAGES = (*STAGES, "curriculum.main")
ROUNDS = 3
"""Of fitting: how many transactions there are depends a little on what they cost."""


async def measure(running: Broker, load: Load) -> Measured:
    """Run a load through a worker with assembly, scoring and grouping."""
    events = CAPACITY_EVENTS if math.isinf(load.rate) else int(load.rate * load.seconds)
    changes = {"event_partitions": load.partitions}
    stream_settings, sent = await prepare(running.bootstrap_servers, events, changes)
    reader = Reader(stream_settings)
    async with a_worker(running.bootstrap_servers, stream_settings.namespace, changes) as done:
        reading = asyncio.create_task(reader.run())
        began, broker_s, client_s = time.monotonic(), running.cpu_seconds(), time.process_time()
        if load.rate:
            await until_complete(reader, await send(stream_settings, sent, reader, load.rate))
        else:
            await asyncio.sleep(load.seconds)
        took = time.monotonic() - began
        broker_s, client_s = running.cpu_seconds() - broker_s, time.process_time() - client_s
        reading.cancel()
    first = min((times.sent for times in reader.groups.values()), default=0.0) + SETTLE_S
    groups = [times for times in reader.groups.values() if times.sent >= first]
    parts = sum(done[stage]["transactions"] for stage in STAGES)
    return Measured(
        events_per_s=len(sent) / took,
        worker_cores=done["cpu_seconds"] / done["seconds"],
        broker_cores=broker_s / took,
        p50_ms=quantile(groups, None, 0.5) if groups else 0.0,
        p99_ms=quantile(groups, None, 0.99) if groups else 0.0,
        commit_ms=sum(done[stage]["commit_s"] for stage in STAGES) / max(parts, 1) * 1000,
        client_s=client_s,
        seconds=took,
        open_s=done["opened"]["open_s"],
    )


async def measure_all(running: Broker, seconds: float) -> tuple[dict[Load, Measured], float]:
    """Run the loads that costs are fitted to; return what they took, and what restoring a row took."""
    loads = (Load(4, 0.0, seconds / 2), Load(4, RATE, seconds), Load(4, math.inf, 0.0), Load(32, RATE, seconds))
    measured_by_load = {load: await measure(running, load) for load in loads}
    return measured_by_load, await measure_restoring(running.bootstrap_servers, OPEN_EPISODES)


def calibrate(measured_by_load: dict[Load, Measured], restore_row_s: float, cores: int) -> Costs:
    """Return the costs that explain the runs best."""
    warm_up()
    idle, slow, full, many = measured_by_load
    costs = Costs(
        step_s=step_costs(),
        record_s=20e-6,
        transaction_s=0.005,
        idle_share=measured_by_load[idle].worker_cores,
        broker_record_s=20e-6,
        broker_transaction_s=0.005,
        marker_s=0.0002,
        broker_idle_share=measured_by_load[idle].broker_cores,
        client_record_s=measured_by_load[full].client_s / CAPACITY_EVENTS,
        commit_wait_s=0.0,
        hand_over_s=0.0,
        open_s=max(0.0, measured_by_load[many].open_s - measured_by_load[slow].open_s)
        / (len(STAGES) * (many.partitions - slow.partitions)),
        restore_row_s=restore_row_s,
    )
    loads = (slow, full, many)
    for _ in range(ROUNDS):
        seen = [simulate(load, costs, cores) for load in loads]
        costs = fit(costs, [measured_by_load[load] for load in loads], [out for _, out in seen])
        again, _ = simulate(slow, costs, cores)
        wait = costs.commit_wait_s + (measured_by_load[slow].commit_ms - again.commit_ms) / 1000
        costs = replace(costs, commit_wait_s=max(0.0, wait))
        again, _ = simulate(slow, costs, cores)
        hand_over = costs.hand_over_s + (measured_by_load[slow].p50_ms - again.p50_ms) / 1000 / len(STAGES)
        costs = replace(costs, hand_over_s=max(0.0, hand_over))
    return costs


def step_costs(events: int = 20_000) -> dict[str, float]:
    """Return what the stage code takes per input record of each stage, on traffic as fast as the stages take it."""
    every = [*namespace_stages(AssemblyConfig(), ScoringConfig()), *run_stages(RunConfig())]
    stages = [stage for stage in every if stage.name in ALL_STAGES]
    nothing = Costs(dict.fromkeys(ALL_STAGES, 0.0), *[0.0] * 12)
    cluster = Cluster(4, workers=1, brokers=1, data_centre=HERE, one_machine_cores=2)
    simulation = Simulation(cluster, nothing, stages, seed=1, clock=time.process_time)
    out = simulation.run_backlog(list(islice(traffic(random.Random(1)), events)), GROUPS_AHEAD, MEMBERS * EVENTS)
    return {name: out.step_s[name] / out.taken[name] for name in ALL_STAGES}


def to_json(costs: Costs) -> str:
    """Return costs as `run --costs` reads them."""
    return json.dumps(asdict(costs), indent=2)


def from_json(text: str) -> Costs:
    """Return what `to_json` wrote."""
    return Costs(**json.loads(text))
