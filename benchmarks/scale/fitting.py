"""A load simulated on one machine, and the processor time of real runs divided among what the simulation counts.

The errors count as shares of each run's processor time, and no cost is below zero. Pure: `calibrate` measures.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from benchmarks.scale.cluster import Cluster, Outcome, Simulation
from benchmarks.scale.costs import Costs, DataCentre
from benchmarks.streams.events import EVENTS
from benchmarks.streams.latency import (
    CAPACITY_EVENTS,
    GROUPS_AHEAD,
    MEMBERS,
    SETTLE_S,
    Times,
    quantile,
    traffic,
)
from benchmarks.streams.pipeline import STAGES, three_stages

HERE = DataCentre(round_trip_s=0.0, disk_bytes_per_s=1e12, network_bytes_per_s=1e12, replicas=1)
"""One machine: what its round trips take is measured with the transactions, and its disk is not what limits it."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is run for real and simulated."""

    partitions: int
    rate: float
    """Events per second; 0 for none, infinite for a backlog that is refilled."""
    seconds: float

    def __str__(self) -> str:
        """Say it as a row of the table does."""
        rate = "a backlog" if math.isinf(self.rate) else f"{self.rate:.0f} events/s"
        return f"{rate}, {self.partitions} partitions"


@dataclass(frozen=True, slots=True)
class Measured:
    """What a load took, for real or simulated."""

    events_per_s: float
    worker_cores: float
    broker_cores: float
    p50_ms: float
    p99_ms: float
    commit_ms: float = 0.0
    client_s: float = 0.0
    seconds: float = 0.0
    open_s: float = 0.0


def simulate(load: Load, costs: Costs, cores: int) -> tuple[Measured, Outcome]:
    """Run the same load in the simulation, on one machine."""
    cluster = Cluster(load.partitions, workers=1, brokers=1, data_centre=HERE, one_machine_cores=cores)
    simulation, chance = Simulation(cluster, costs, three_stages(), seed=1), random.Random(1)
    if math.isinf(load.rate):
        out = simulation.run_backlog(list(islice(traffic(chance), CAPACITY_EVENTS)), GROUPS_AHEAD, MEMBERS * EVENTS)
    else:
        out = simulation.run(traffic(chance), load.rate, load.seconds)
    return as_measured(out), out


def as_measured(out: Outcome, settle_s: float = SETTLE_S) -> Measured:
    """Return what a simulated run took, in the terms of a real one."""
    groups = [Times(at - latency, {"grouping": at, "scoring": at, "assembly": at}) for at, latency in out.groups]
    groups = [times for times in groups if times.sent >= settle_s]
    return Measured(
        events_per_s=out.events / out.seconds,
        worker_cores=sum(out.worker_s) / out.seconds,
        broker_cores=sum(out.broker_s) / out.seconds,
        p50_ms=quantile(groups, None, 0.5) if groups else 0.0,
        p99_ms=quantile(groups, None, 0.99) if groups else 0.0,
        commit_ms=out.commit_s / max(sum(out.transactions[stage] for stage in STAGES), 1) * 1000,
        seconds=out.seconds,
    )


def fit(costs: Costs, measurements: Sequence[Measured], seen: Sequence[Outcome]) -> Costs:
    """Divide the processor time of real runs among what the simulation counted in the same loads."""
    steps = [sum(out.taken[stage] * costs.step_s[stage] for stage in STAGES) for out in seen]
    worker_s, broker_s = (
        [getattr(measurement, who) * measurement.seconds for measurement in measurements]
        for who in ("worker_cores", "broker_cores")
    )
    of_worker = [[sum(out.transactions.values()), sum(out.taken.values())] for out in seen]
    of_broker = [[sum(out.transactions.values()), out.markers, out.broker_records] for out in seen]
    idle_s = [
        costs.idle_share * measurement.seconds + step for measurement, step in zip(measurements, steps, strict=True)
    ]
    transaction_s, record_s = _solve(of_worker, worker_s, idle_s)
    idle_s = [costs.broker_idle_share * measurement.seconds for measurement in measurements]
    broker_transaction_s, marker_s, broker_record_s = _solve(of_broker, broker_s, idle_s)
    return replace(
        costs,
        transaction_s=transaction_s,
        record_s=record_s,
        broker_transaction_s=broker_transaction_s,
        marker_s=marker_s,
        broker_record_s=broker_record_s,
    )


def _solve(counts: Sequence[Sequence[float]], whole_s: Sequence[float], known_s: Sequence[float]) -> list[float]:
    """Explain what is not known of each run; a cost that would be negative is none, and the others are found again."""
    whole = np.array(whole_s)
    rows, relative_target = np.array(counts, dtype=float) / whole[:, None], (whole - np.array(known_s)) / whole
    columns = list(range(rows.shape[1]))
    costs = [0.0] * len(columns)
    while columns:
        solution = [float(coefficient) for coefficient in np.linalg.lstsq(rows[:, columns], relative_target)[0]]
        if min(solution) >= 0:
            for place, cost in zip(columns, solution, strict=True):
                costs[place] = cost
            break
        columns.pop(solution.index(min(solution)))
    return costs
