"""Simulated brokers: processors, a disk and a network interface each; partitions lead on them in turn."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import simpy

from benchmarks.scale.costs import Costs, DataCentre
from benchmarks.scale.servers import Cpu, Link, Waiting

Place = tuple[str, int]
"""A topic and one of all its partitions, those outside of the simulated share too."""


@dataclass(frozen=True, slots=True)
class Write:
    """What reaches a partition."""

    records: int
    size: int


class Broker:
    """One broker."""

    def __init__(self, env: simpy.Environment, machine: simpy.Resource, data_centre: DataCentre) -> None:
        self.cpu = Cpu(env, machine, threads=data_centre.broker_cores)
        self.disk = Link(env, data_centre.disk_bytes_per_s)
        self.network = Link(env, data_centre.network_bytes_per_s)

    def write(self, seconds: float, size: float, copies: int) -> Waiting:
        """Write bytes that it leads; as a follower it writes as much of others for each further copy."""
        yield from self.cpu.work(seconds)
        yield from self.network.carry(size * copies)
        yield from self.disk.carry(size * copies)


class Brokers:
    """All brokers of the simulated share."""

    def __init__(
        self, env: simpy.Environment, brokers: list[Broker], costs: Costs, data_centre: DataCentre, *, workers: int
    ) -> None:
        self.all, self.records = brokers, 0
        self._env, self._costs, self._data_centre = env, costs, data_centre
        for broker in brokers:
            env.process(self._poll(broker, costs.broker_idle_share * workers / len(brokers)))

    def produce(self, writes: Mapping[Place, Write]) -> Waiting:
        """Write without a transaction, to all leaders at once."""
        yield from self._write(writes, marker_s=0.0)

    def commit(self, writes: Mapping[Place, Write], markers: Iterable[Place], coordinator: int) -> Waiting:
        """Write a transaction: rows, then a marker in every partition that it touched."""
        broker = self.all[coordinator % len(self.all)]
        yield from broker.cpu.work(self._costs.broker_transaction_s)
        yield from self._write({place: Write(0, 0) for place in markers} | dict(writes), marker_s=self._costs.marker_s)

    def _write(self, writes: Mapping[Place, Write], marker_s: float) -> Waiting:
        self.records += sum(write.records for write in writes.values())
        seconds, sizes = Counter[int](), Counter[int]()
        for (topic, partition), write in writes.items():
            leader = (partition + len(topic)) % len(self.all)
            seconds[leader] += write.records * self._costs.broker_record_s + marker_s  # type: ignore[assignment]
            sizes[leader] += write.size
        copies, compression = self._data_centre.replicas, self._data_centre.compression
        writing = [
            self._env.process(self.all[leader].write(taken, sizes[leader] / compression, copies))
            for leader, taken in seconds.items()
        ]
        yield self._env.all_of(writing)

    def _poll(self, broker: Broker, share: float) -> Waiting:
        while True:
            yield self._env.timeout(0.1)
            yield from broker.cpu.work(0.1 * share)
