"""Measure costs here, say how wrong they are, and print what clusters for 10⁴, 10⁵ and 10⁶ events/s do with them.

python -m benchmarks.scale.run [--costs FILE] [--seconds N]

With --costs no broker is started: the costs are read from a file that an earlier run wrote.
"""

import argparse
import asyncio
import math
import os
import random
from dataclasses import asdict
from pathlib import Path
from statistics import quantiles

from benchmarks.scale.calibrate import ALL_STAGES, calibrate, from_json, measure, measure_all, to_json
from benchmarks.scale.cluster import Cluster, Fault, Outcome, Simulation
from benchmarks.scale.costs import Costs
from benchmarks.scale.fitting import Load, Measured, simulate
from benchmarks.streams.broker import broker
from benchmarks.streams.events import EVENTS
from benchmarks.streams.latency import MEMBERS, traffic
from rollbus.schemas.records.config import AssemblyConfig, BatchingConfig, RunConfig, ScoringConfig
from rollbus.streams.pipeline import namespace_stages, run_stages

COSTS = Path(".rollbus/bench-scale-costs.json")
EPISODE_S = 3.0
"""How long an episode is under way in the simulated traffic."""
SETTLE_S = 1.0 + EPISODE_S
"""Until as many episodes end as begin."""
KILL_S, JOIN_S = 8.0, 19.0
"""When a worker is killed, and when another joins: the worker that takes its place."""
SECONDS = 25.0
RUN = RunConfig(batching=BatchingConfig(batches_ahead=1_000_000))
"""Nobody trains, so batches are not waited for."""
CLUSTERS: dict[str, tuple[float, Cluster]] = {
    "10⁴": (1e4, Cluster(partitions=12, workers=4, brokers=3)),
    "10⁵": (1e5, Cluster(partitions=96, workers=32, brokers=16, shares=8)),
    "10⁶, 16 namespaces": (1e6, Cluster(partitions=768, workers=256, brokers=128, shares=64, namespaces=16)),
    "10⁶, one namespace": (1e6, Cluster(partitions=768, workers=256, brokers=128, shares=64)),
}
"""Each share has four workers, so that a kill takes a quarter of it: in a large cluster, a quarter of all at once."""


def main() -> None:
    """Print it all."""
    given = argparse.ArgumentParser()
    given.add_argument("--costs", type=read_costs)
    given.add_argument("--seconds", type=float, default=15.0, help="of each run that costs are measured in")
    arguments = given.parse_args()
    costs = arguments.costs or measure_costs(arguments.seconds)
    print_costs(costs)
    for name, (rate, cluster) in CLUSTERS.items():
        print_cluster(name, rate, cluster, costs)


def read_costs(path: str) -> Costs:
    """Return the costs in a file; raises ArgumentTypeError."""
    try:
        return from_json(Path(path).read_text())
    except (OSError, ValueError, TypeError) as error:
        raise argparse.ArgumentTypeError(f"{path} has no costs that a run without --costs wrote: {error}") from error


def measure_costs(seconds: float) -> Costs:
    """Calibrate, keep the costs in a file, and print their errors, of runs fitted to and of others."""
    cores = len(os.sched_getaffinity(0))
    with broker() as running:
        measured_by_load, restore_row_s = asyncio.run(measure_all(running, seconds))
        full = next(measured.events_per_s for load, measured in measured_by_load.items() if math.isinf(load.rate))
        others = (Load(2, full / 2, seconds), Load(16, 1_000.0, seconds))
        predicted = {load: asyncio.run(measure(running, load)) for load in others}
    costs = calibrate(measured_by_load, restore_row_s, cores)
    COSTS.parent.mkdir(exist_ok=True)
    COSTS.write_text(to_json(costs))
    print(f"load of this machine: {os.getloadavg()[0]:.1f}; {cores} cores for worker, broker, producer and reader")
    heads = f"{'events/s':>15} {'worker cores':>13} {'broker cores':>13} {'p50 ms':>11} {'p99 ms':>11}"
    print(f"{'measured/simulated':42} {heads}")
    for load, measured in (measured_by_load | predicted).items():
        kind = "predicted" if load in predicted else "fitted"
        print_error(f"{kind}: {load}", measured, simulate(load, costs, cores)[0] if load.rate else None)
    return costs


def print_error(name: str, real: Measured, simulated: Measured | None) -> None:
    """Print a row of the table, and by how much the simulation is off."""
    if simulated is None:
        print(f"{name:42} {'':15} {real.worker_cores:14.3f} {real.broker_cores:14.3f}")
        return
    fields = ("events_per_s", "worker_cores", "broker_cores", "p50_ms", "p99_ms")
    pairs = [(getattr(real, field), getattr(simulated, field)) for field in fields]
    shapes = ("7.0f", "6.2f", "6.2f", "5.0f", "5.0f")
    row = " ".join(f"{a:{shape}}/{b:{shape}}" for (a, b), shape in zip(pairs, shapes, strict=True))
    print(f"{name:42} {row}")
    if name.startswith("predicted"):
        off = ", ".join(f"{field} {b / a - 1:+.0%}" for field, (a, b) in zip(fields, pairs, strict=True) if a)
        print(f"  error of the prediction: {off}")


def print_costs(costs: Costs) -> None:
    """Print the costs in µs."""
    steps = ", ".join(f"{stage} {costs.step_s[stage] * 1e6:.1f}" for stage in ALL_STAGES)
    print(f"µs: stage code per input record: {steps}")
    names = [name for name in asdict(costs) if name not in ("step_s", "idle_share", "broker_idle_share")]
    print("  " + ", ".join(f"{name.removesuffix('_s')} {getattr(costs, name) * 1e6:.1f}" for name in names))
    print(f"  idle: worker {costs.idle_share:.3f} and broker {costs.broker_idle_share:.3f} of a core")


def print_cluster(name: str, rate: float, cluster: Cluster, costs: Costs) -> None:
    """Simulate and print one cluster: in peace, with a kill and a join, and what it costs."""
    out = run_cluster(rate, cluster, costs, (Fault(KILL_S, "kill"), Fault(JOIN_S, "join")))
    print(f"\n{name} events/s: {cluster.partitions} partitions, {cluster.workers} workers, {cluster.brokers} brokers"
          f" of {cluster.data_centre.broker_cores} cores; one share in {cluster.shares} simulated")  # fmt: skip
    for line in describe_outcome(out, rate, cluster, costs):
        print(f"  {line}", flush=True)


def run_cluster(
    rate: float, cluster: Cluster, costs: Costs, faults: tuple[Fault, ...], seconds: float = SECONDS
) -> Outcome:
    """Simulate one share's traffic."""
    every = [*namespace_stages(AssemblyConfig(), ScoringConfig()), *run_stages(RUN)]
    stages = [stage for stage in every if stage.name in ALL_STAGES]
    of_share = rate / cluster.shares
    at_once = max(1, int(of_share * EPISODE_S / EVENTS / MEMBERS))
    simulation = Simulation(cluster, costs, stages, seed=1)
    return simulation.run(traffic(random.Random(1), at_once), of_share, seconds, faults)


def describe_outcome(out: Outcome, rate: float, cluster: Cluster, costs: Costs) -> list[str]:
    """Return what a run did, in lines."""
    peace = [latency for at, latency in out.groups if SETTLE_S <= at - latency < KILL_S - 1]
    p50, p99 = percentiles(peace)
    shares, seconds = cluster.shares, out.seconds
    groups_per_s, broker_cores = rate / EVENTS / MEMBERS, cluster.brokers * cluster.data_centre.broker_cores
    lines = [
        f"{groups_per_s:.0f} groups/s, p50 {p50:.0f} ms, p99 {p99:.0f} ms without faults; "
        f"{out.pending * shares} groups had not come in the end",
        *(after(out, what, at, p99) for what, at in (("kill", KILL_S), ("join", JOIN_S))),
        f"workers busy with {sum(out.worker_s) * shares / seconds:.1f} cores of {cluster.workers}; "
        f"brokers with {sum(out.broker_s) * shares / seconds:.1f} of {broker_cores}",
        f"written with {cluster.data_centre.replicas} copies: {out.disk_bytes * shares / seconds / 1e6:.0f} MB/s, "
        f"{out.disk_bytes * shares / seconds * 86_400 / 1e12:.1f} TB a day; "
        f"network of a broker {out.network_bytes * shares / seconds / cluster.brokers / 1e6:.0f} MB/s",
    ]
    single = out.single_s["curriculum.main"] / seconds
    core = costs.step_s["curriculum.main"] + costs.record_s
    lines.append(
        f"curriculum, one partition for each namespace: {single:.2f} of its core, which takes {1 / core:.0f} groups/s"
    )
    return lines


def after(out: Outcome, what: str, at_s: float, p99_ms: float) -> str:
    """Say how long a fault was felt: until no group took twice the usual p99 any more."""
    until = JOIN_S if what == "kill" else math.inf
    slow = [at for at, latency in out.groups if at_s < at < until and latency * 1000 > 2 * p99_ms]
    worst = max((latency for at, latency in out.groups if at_s < at < until), default=0.0)
    opened = [ended - began for began, ended in out.rebalances if began == at_s]
    again = f"partitions open again after {max(opened):.1f} s" if opened else "partitions did not open again"
    usual = f"usual latency after {max(slow, default=at_s) - at_s:.1f} s"
    return f"after a {what}: {again}, {usual}; the slowest group took {worst:.1f} s"


def percentiles(latencies: list[float]) -> tuple[float, float]:
    """Return p50 and p99, in ms."""
    if len(latencies) < 2:
        return math.nan, math.nan
    cut = quantiles(latencies, n=100)
    return cut[49] * 1000, cut[98] * 1000


if __name__ == "__main__":
    main()
