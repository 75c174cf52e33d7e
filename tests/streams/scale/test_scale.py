"""The simulation of large clusters: known results of queues, nothing lost, and what more machines must give."""

import random
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import simpy

from benchmarks.scale.cluster import Cluster, Fault, Outcome, Simulation
from benchmarks.scale.costs import Costs, DataCentre
from benchmarks.scale.fitting import Load, fit
from benchmarks.scale.fitting import simulate as simulate_load
from benchmarks.scale.servers import Cpu, Waiting
from benchmarks.streams.events import EVENTS
from benchmarks.streams.latency import MEMBERS, Sent, traffic
from rollbus.schemas.records.config import AssemblyConfig, RunConfig, ScoringConfig
from rollbus.streams.pipeline import namespace_stages, run_stages

pytestmark = pytest.mark.slow

STEPS = ("assembly", "scoring", "grouping.main", "curriculum.main")
COSTS = Costs(
    step_s=dict.fromkeys(STEPS, 0.001),
    record_s=0.001,
    transaction_s=0.005,
    idle_share=0.02,
    broker_record_s=0.00005,
    broker_transaction_s=0.007,
    marker_s=0.0002,
    broker_idle_share=0.02,
    client_record_s=0.0002,
    commit_wait_s=0.005,
    hand_over_s=0.005,
    open_s=0.02,
    restore_row_s=0.0001,
)
"""Round figures: slow enough that a second of traffic is few records."""
CLUSTER = Cluster(partitions=4, workers=2, brokers=3)


def stages() -> list[Any]:
    every = [*namespace_stages(AssemblyConfig(), ScoringConfig()), *run_stages(RunConfig())]
    return [stage for stage in every if stage.name in STEPS]


def _episode(sent: Sent) -> int:
    return int(sent.key.removeprefix(b"episode-"))


def simulate(
    cluster: Cluster = CLUSTER,
    *,
    costs: Costs = COSTS,
    rate: float = 100,
    seconds: float = 6,
    faults: Any = (),
    seed: int = 1,
) -> Outcome:
    simulation = Simulation(cluster, costs, stages(), seed=seed)
    return simulation.run(traffic(random.Random(seed), 4), rate, seconds, faults)


@pytest.mark.parametrize("load", [0.3, 0.6])
def test_a_simulated_core_waits_as_the_formula_of_m_d_1_says(load: float) -> None:
    env, chance, work_s = simpy.Environment(), random.Random(7), 0.004
    cpu, waits = Cpu(env, simpy.Resource(env, 1)), list[float]()

    def job() -> Waiting:
        began = env.now
        yield from cpu.work(work_s)
        waits.append(env.now - began - work_s)

    def arrivals() -> Waiting:
        for _ in range(15_000):
            yield env.timeout(chance.expovariate(load / work_s))
            env.process(job())

    env.process(arrivals())
    env.run()
    assert sum(waits) / len(waits) == pytest.approx(load * work_s / (2 * (1 - load)), rel=0.08)
    assert cpu.busy_s == pytest.approx(15_000 * work_s)


@pytest.mark.parametrize("faults", [(), (Fault(2.0, "kill"),), (Fault(2.0, "join"), Fault(3.0, "kill"))], ids=str)
def test_every_episode_becomes_one_trajectory_and_score_despite_kills(faults: tuple[Fault, ...]) -> None:
    groups = 20
    whole = [sent for sent in islice(traffic(random.Random(1), 4), 800) if _episode(sent) < groups * MEMBERS]
    assert len(whole) == groups * MEMBERS * EVENTS
    out = Simulation(CLUSTER, COSTS, stages(), seed=1).run(iter(whole), 100, len(whole) / 100, faults)
    assert (out.events, out.pending, len(out.groups)) == (len(whole), 0, groups)
    written = {topic: out.written[topic] for topic in ("trajectories", "scores", "run-log", "drops", "dead-letters")}
    assert written == {
        "trajectories": groups * MEMBERS,
        "scores": groups * MEMBERS,
        "run-log": groups,
        "drops": 0,
        "dead-letters": 0,
    }
    assert len(out.rebalances) == len(stages()) * len(faults)


def test_the_same_seed_gives_the_same_outcome() -> None:
    faults = (Fault(2.0, "kill"),)
    assert simulate(faults=faults) == simulate(faults=faults)
    assert simulate(faults=faults) != simulate(faults=faults, seed=2)


def test_a_killed_worker_delays_groups_by_the_session_timeout_at_least() -> None:
    calm, hurt = simulate(seconds=12), simulate(seconds=12, faults=(Fault(3.0, "kill"),))
    assert max(latency for _, latency in calm.groups) < 1.0
    assert max(latency for _, latency in hurt.groups) > CLUSTER.session_timeout_s - 1
    assert all(ended - began > CLUSTER.session_timeout_s for began, ended in hurt.rebalances)


def test_more_partitions_for_more_workers_finish_a_load_that_was_too_much() -> None:
    done = []
    for workers in (1, 2, 4):
        out = simulate(Cluster(partitions=workers, workers=workers, brokers=3), rate=600, seconds=3)
        done.append(sum(at <= 3 for at, _ in out.groups))
    assert done == sorted(set(done))
    assert done[0] < done[-1] / 2


def test_more_partitions_cost_the_brokers_more_markers_for_the_same_traffic() -> None:
    dear = replace(COSTS, marker_s=0.002)
    few, many = (simulate(Cluster(partitions=count, workers=2, brokers=3), costs=dear) for count in (2, 32))
    assert few.written == many.written
    assert few.markers < many.markers
    assert sum(few.broker_s) < sum(many.broker_s)


def test_a_share_of_a_large_cluster_has_the_load_of_the_whole() -> None:
    whole = simulate(Cluster(partitions=4, workers=4, brokers=4), rate=200)
    share = simulate(Cluster(partitions=4, workers=4, brokers=4, shares=4), rate=50)
    assert 4 * sum(share.worker_s[:1]) == pytest.approx(sum(whole.worker_s[:4]), rel=0.25)
    assert share.single_s["curriculum.main"] == pytest.approx(whole.single_s["curriculum.main"], rel=0.25)


def test_a_disk_that_is_slower_than_its_traffic_holds_everything_up() -> None:
    slow = replace(CLUSTER, data_centre=DataCentre(disk_bytes_per_s=50_000.0))
    assert sum(at <= 6 for at, _ in simulate(slow).groups) < sum(at <= 6 for at, _ in simulate().groups) / 2


def test_a_cluster_that_does_not_divide_into_its_shares_is_refused() -> None:
    with pytest.raises(ValueError, match="multiples of 3 shares"):
        Cluster(partitions=4, workers=3, brokers=3, shares=3)
    with pytest.raises(ValueError, match="one of the 2 namespaces"):
        Cluster(partitions=4, workers=4, brokers=4, namespaces=2)


def test_costs_are_found_again_from_the_processor_time_of_three_loads() -> None:
    """What is simulated under known costs stands in for the real runs that `calibrate` divides."""
    known_costs = replace(COSTS, open_s=0.0, idle_share=0.0, broker_idle_share=0.0)
    loads = (Load(2, 60.0, 4.0), Load(2, 240.0, 4.0), Load(16, 60.0, 4.0))
    seen = [simulate_load(load, known_costs, 2) for load in loads]
    wrong = replace(
        known_costs, record_s=1.0, transaction_s=1.0, broker_record_s=1.0, broker_transaction_s=1.0, marker_s=1.0
    )
    fitted_costs = fit(wrong, [measured for measured, _ in seen], [out for _, out in seen])
    for name in ("record_s", "transaction_s", "broker_transaction_s", "marker_s"):
        assert getattr(fitted_costs, name) == pytest.approx(getattr(known_costs, name), rel=0.1), name
