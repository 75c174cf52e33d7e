"""A cluster, its costs and its traffic become what it did: throughput, latency, recovery and what it needed.

Partitions of the event topics do not depend on each other. So of a large cluster one share is simulated, record by
record through the real stages: one in so many partitions, with one in so many workers and brokers. Three things do not
divide, and are counted whole: a transaction of a worker reaches partitions of the whole cluster, each of which gets a
marker; a tick goes to every partition; and a stage with a single partition has the groups of all shares.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import simpy

from benchmarks.scale.brokers import Broker, Brokers, Place, Write
from benchmarks.scale.costs import Costs, DataCentre
from benchmarks.scale.log import Log
from benchmarks.scale.servers import Cpu, Waiting
from benchmarks.scale.workers import StageGroup, Worker
from benchmarks.streams.latency import Sent
from rollbus.runtime.kafka.writing import partition_of
from rollbus.schemas.codec import decode, encode
from rollbus.schemas.records.control import Tick
from rollbus.schemas.records.groups import Group
from rollbus.schemas.topics import EPISODE_EVENTS, RUN_LOG, Topic, topic_of
from rollbus.streams.exactly_once.processing import Encoded

LINGER_S = 0.02
"""Of producers, and of workers' small batches: the recorder's and the worker's defaults."""
TICK_MS = 1_000
PATIENCE_S = 30.0
"""Of simulated time, for what is under way when the last event is sent."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What is simulated; numbers are of the whole, `shares` says which part of it runs."""

    partitions: int
    workers: int
    brokers: int
    shares: int = 1
    namespaces: int = 1
    """Into which partitions, workers and events are divided evenly."""
    data_centre: DataCentre = field(default_factory=DataCentre)
    one_machine_cores: int | None = None
    """Everything shares one machine of so many cores, as in the runs that costs are measured in."""
    session_timeout_s: float = 6.0

    def __post_init__(self) -> None:
        """Refuse what does not divide."""
        if self.partitions % self.shares or self.workers % self.shares or self.brokers % self.shares:
            raise ValueError(f"partitions, workers and brokers must be multiples of {self.shares} shares: {self}")
        if self.shares % self.namespaces:
            raise ValueError(f"a share must lie in one of the {self.namespaces} namespaces: {self}")

    @property
    def of_single(self) -> int:
        """How many shares' groups meet in a stage that has one partition."""
        return self.shares // self.namespaces


@dataclass(slots=True)
class Outcome:
    """What happened in the simulated share."""

    seconds: float = 0.0
    events: int = 0
    """Sent."""
    pending: int = 0
    """Groups whose last event was sent, and which are not there."""
    written: Counter[str] = field(default_factory=Counter)
    """Records by topic that stages have committed."""
    groups: list[tuple[float, float]] = field(default_factory=list)
    """When each group was there, and how long after its last event; in order."""
    transactions: Counter[str] = field(default_factory=Counter)
    """By stage, and of the ticker."""
    markers: int = 0
    broker_records: int = 0
    """Written by producers, stages and the ticker."""
    taken: Counter[str] = field(default_factory=Counter)
    """Input records by stage; ticks that need no transaction are among them."""
    commit_s: float = 0.0
    """From the end of a step to its commit, of all transactions."""
    step_s: Counter[str] = field(default_factory=Counter)
    """Real time that the stage code took, if a clock was given."""
    worker_s: list[float] = field(default_factory=list)
    """Processor time, by worker."""
    broker_s: list[float] = field(default_factory=list)
    disk_bytes: float = 0.0
    network_bytes: float = 0.0
    single_s: Counter[str] = field(default_factory=Counter)
    """Processor time of the stages that have one partition, for the groups of all shares."""
    rebalances: list[tuple[float, float]] = field(default_factory=list)
    """When partitions of a stage were taken from their workers, and when the last of them was open again."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A worker that is killed, or one that joins, at a time."""

    at_s: float
    kind: str


class Simulation:
    """One run; the same arguments give the same outcome."""

    def __init__(
        self,
        cluster: Cluster,
        costs: Costs,
        stages: Sequence[Any],
        *,
        seed: int,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """With a clock, the stage code is timed; its own time then changes nothing in the simulation."""
        self.env, self.cluster, self.costs, self.clock = simpy.Environment(), cluster, costs, clock
        self.outcome, self.chance = Outcome(), random.Random(seed)
        self.partitions = cluster.partitions // cluster.shares
        cores = cluster.one_machine_cores
        shared = simpy.Resource(self.env, cores) if cores else None
        self._machine = shared
        self._clients = Cpu(self.env, shared or simpy.Resource(self.env, 1_000_000), threads=1_000_000)
        workers = cluster.workers // cluster.shares
        machines = [shared or simpy.Resource(self.env, cluster.data_centre.broker_cores) for _ in range(
            cluster.brokers // cluster.shares)]  # fmt: skip
        brokers = [Broker(self.env, machine, cluster.data_centre) for machine in machines]
        self.brokers = Brokers(self.env, brokers, costs, cluster.data_centre, workers=workers)
        self.logs: dict[Place, Log] = {}
        self.groups = [StageGroup(self, stage) for stage in stages]
        self._reading = {group.stage.input.name: group for group in self.groups}
        self.workers = [self._new_worker(number) for number in range(workers)]
        self.single = self.workers[0] if cluster.one_machine_cores else self._new_worker(workers)
        """Has the stages with one partition: a process of its own, but where costs are measured."""
        self._sent: dict[str, float] = {}
        self._waking: set[tuple[str, int]] = set()

    def _new_worker(self, number: int) -> Worker:
        return Worker(number, Cpu(self.env, self._machine or simpy.Resource(self.env, 1)), self)

    def run(self, events: Iterator[Sent], rate: float, seconds: float, faults: Sequence[Fault] = ()) -> Outcome:
        """Send at a rate to the share for so long, then finish what is under way, within PATIENCE_S."""
        return self._run(self._send_at(events, rate, seconds), faults)

    def run_backlog(self, events: Sequence[Sent], groups_ahead: int, events_of_group: int) -> Outcome:
        """Send so that the stages always have so many groups to do, until all events are done."""
        return self._run(self._send_ahead(events, groups_ahead, events_of_group), ())

    def _run(self, sending: Waiting, faults: Sequence[Fault]) -> Outcome:
        for group in self.groups:
            group.start()
        self.env.process(self._tick())
        for fault in faults:
            self.env.process(self._inject(fault))
        self.env.run(self.env.process(sending))
        patience = self.env.now + PATIENCE_S
        while self._sent and self.env.now < patience:
            self.env.run(self.env.now + LINGER_S)
        out = self.outcome
        out.seconds, out.pending = self.env.now, len(self._sent)
        out.broker_records = self.brokers.records
        out.worker_s = [worker.cpu.busy_s for worker in self.workers]
        out.broker_s = [broker.cpu.busy_s for broker in self.brokers.all]
        out.disk_bytes = sum(broker.disk.bytes for broker in self.brokers.all)
        out.network_bytes += sum(broker.network.bytes for broker in self.brokers.all)
        return out

    # What goes into the log

    def log(self, topic: Topic, partition: int) -> Log:
        """Return one of the share's partitions."""
        return self.logs.setdefault((topic.name, partition), Log())

    def place_of(self, topic: Topic, key: bytes | None) -> Place:
        """Return the partition of the whole cluster that a key belongs to."""
        is_single = topic.partitions == "one" or not key
        return topic.name, 0 if is_single else partition_of(
            key or b"", self.cluster.partitions // self.cluster.namespaces
        )

    def append(self, topic: Topic, partition: int, key: bytes | None, value: bytes) -> None:
        """Commit a record to one of the whole cluster's partitions; the share has one in `shares` of them."""
        group = self._reading.get(topic.name)
        if group is not None:
            local = partition % self.partitions
            self.log(topic, local).append(int(self.env.now * 1000), key, value)
            self.outcome.network_bytes += len(value) / self.cluster.data_centre.compression
            if (topic.name, local) not in self._waking:
                self._waking.add((topic.name, local))
                self.env.process(self._hand_over(group, topic.name, local))

    def emit(self, output: Encoded) -> None:
        """Commit an output of a stage."""
        topic = topic_of(output.topic)
        self.outcome.written[topic.name] += 1
        self.append(topic, self.place_of(topic, output.key)[1], output.key, output.value)
        if topic is RUN_LOG and isinstance(record := decode(output.value), Group):
            sent = self._sent.pop(record.group_key.removeprefix("group:"), None)
            if sent is not None:
                self.outcome.groups.append((self.env.now, self.env.now - sent))

    def _hand_over(self, group: StageGroup, topic: str, partition: int) -> Waiting:
        yield self.env.timeout(self.costs.hand_over_s + self.cluster.data_centre.round_trip_s)
        self._waking.remove((topic, partition))
        group.wake(partition)

    # Who writes into it

    def _send_at(self, events: Iterator[Sent], rate: float, seconds: float) -> Waiting:
        number = 0
        while self.env.now < seconds:
            yield self.env.timeout(LINGER_S)
            due = int(min(self.env.now, seconds) * rate)
            self._produce([next(events) for _ in range(due - number)], [place / rate for place in range(number, due)])
            number = due

    def _send_ahead(self, events: Sequence[Sent], ahead: int, size: int) -> Waiting:
        number = 0
        while number < len(events):
            due = events[number : number + max(0, ahead - len(self._sent)) * size]
            self._produce(due, [self.env.now] * len(due))
            number += len(due)
            yield self.env.timeout(LINGER_S)

    def _produce(self, events: Sequence[Sent], due_s: Sequence[float]) -> None:
        for event, due in zip(events, due_s, strict=True):
            if event.ends is not None:
                self._sent[event.ends] = due
        self.outcome.events += len(events)
        if events:
            self.env.process(self._deliver(events))

    def _deliver(self, events: Sequence[Sent]) -> Waiting:
        places = [partition_of(event.key, self.partitions) for event in events]
        sizes, numbers = Counter[int](), Counter(places)
        for place, event in zip(places, events, strict=True):
            sizes[place] += len(event.value)
        if self._machine is not None:
            yield from self._clients.work(len(events) * self.costs.client_record_s)
        writes = {(EPISODE_EVENTS.name, place): Write(numbers[place], sizes[place]) for place in numbers}
        yield from self.brokers.produce(writes)
        yield self.env.timeout(2 * self.cluster.data_centre.round_trip_s)
        for place, event in zip(places, events, strict=True):
            self.append(EPISODE_EVENTS, place, event.key, event.value)

    def _tick(self) -> Waiting:
        inputs = {group.stage.input.name: group.stage.input for group in self.groups}
        for number in count(1):
            yield self.env.timeout(TICK_MS / 1000)
            now_ms = number * TICK_MS
            value = encode(Tick(number=number, stream_time_ms=now_ms, wall_clock_ms=now_ms, interval_ms=TICK_MS))
            places = [
                (topic, partition)
                for topic in inputs.values()
                for partition in range(1 if topic.partitions == "one" else self.partitions)
            ]
            marked = [(topic.name, partition) for topic, partition in places]
            self.outcome.markers += len(marked)
            self.outcome.transactions["ticker"] += 1
            yield from self.workers[0].cpu.work(self.costs.transaction_s)
            yield from self.brokers.commit({place: Write(1, len(value)) for place in marked}, marked, 0)
            for topic, partition in places:
                self.append(topic, partition, None, value)

    # What goes wrong

    def _inject(self, fault: Fault) -> Waiting:
        yield self.env.timeout(fault.at_s)
        if fault.kind == "kill":
            killed = self.workers[-1]
            killed.is_alive = False
            for group in self.groups:
                group.stop_of(killed)
            yield self.env.timeout(self.cluster.session_timeout_s)
        else:
            self.workers.append(self._new_worker(len(self.workers)))
        for group in self.groups:
            self.env.process(group.rebalance(began_s=fault.at_s))
