"""Simulated workers: the real stage code on real records, whose work takes the measured time.

As in `rollbus.streams.exactly_once`: the partitions of a stage in one process share their transactions; outputs,
changelog rows and positions commit together or not at all; a rebalance takes all partitions of a group from everyone,
and each owner restores their state from the changelog. A transaction that is cut off has no effect, so what was in it
is done again from the committed position.
"""

from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import simpy

from benchmarks.scale.brokers import Place, Write
from benchmarks.scale.costs import ROUND_TRIPS
from benchmarks.scale.log import Record
from benchmarks.scale.servers import Cpu, Waiting
from rollbus.schemas.topics import topic_of
from rollbus.streams.exactly_once.batch import Partition
from rollbus.streams.exactly_once.processing import Processed, StagePartition
from rollbus.streams.exactly_once.runner import MOST_RECORDS, QUIET_S
from rollbus.streams.exactly_once.transaction import MOST_BYTES

if TYPE_CHECKING:
    from benchmarks.scale.cluster import Simulation

LINGER_S = 0.02


class Worker:
    """One worker process; it holds partitions of every stage."""

    def __init__(self, number: int, cpu: Cpu, simulation: "Simulation") -> None:
        self.number, self.cpu, self.is_alive = number, cpu, True
        simulation.env.process(self._poll(simulation.env, simulation.costs.idle_share))

    def _poll(self, env: simpy.Environment, share: float) -> Waiting:
        while self.is_alive:
            yield env.timeout(0.1)
            yield from self.cpu.work(0.1 * share)


@dataclass(slots=True)
class Committed:
    """What the log keeps of one partition of a stage."""

    position: int
    rows: dict[bytes, bytes]
    """The changelog, compacted."""


class StageGroup:
    """The consumer group of one stage."""

    def __init__(self, simulation: "Simulation", stage: Any) -> None:
        self.simulation, self.stage = simulation, stage
        self.single = stage.input.partitions == "one"
        """Whether one partition has the groups of all shares."""
        partitions = 1 if self.single else simulation.partitions
        self.committed = {number: Committed(0, {}) for number in range(partitions)}
        self._owners: list[Owner] = []
        self._owner_by_partition: dict[int, Owner] = {}

    def start(self) -> None:
        """Give the partitions to the workers."""
        self._assign()

    def wake(self, partition: int) -> None:
        """Say that there are records to read."""
        owner = self._owner_by_partition.get(partition)
        if owner is not None:
            owner.wake()

    def stop_of(self, worker: Worker) -> None:
        """End what a killed worker does."""
        for owner in self._owners:
            if owner.worker is worker:
                owner.stop()

    def rebalance(self, began_s: float) -> Waiting:
        """Take all partitions back, as each member notices by its heartbeat; then assign them."""
        env, heartbeat_s = self.simulation.env, self.simulation.cluster.session_timeout_s / 4
        noticing = [self._revoke(owner, self.simulation.chance.uniform(0, heartbeat_s)) for owner in self._owners]
        yield env.all_of([env.process(process) for process in noticing])
        yield env.timeout(2 * self.simulation.cluster.data_centre.round_trip_s)
        self._assign()
        yield env.all_of([owner.opened for owner in self._owners])
        self.simulation.outcome.rebalances.append((began_s, env.now))

    def _revoke(self, owner: "Owner", after_s: float) -> Waiting:
        yield self.simulation.env.timeout(after_s)
        owner.stop()

    def _assign(self) -> None:
        """Assign ranges, as the group's assignor does."""
        every = [self.simulation.single] if self.single else self.simulation.workers
        workers, partitions = [candidate for candidate in every if candidate.is_alive], list(self.committed)
        share, more = divmod(len(partitions), len(workers))
        self._owners, self._owner_by_partition, first = [], {}, 0
        for place, worker in enumerate(workers):
            mine = partitions[first : first + share + (place < more)]
            first += len(mine)
            if mine:
                owner = Owner(self, worker, mine)
                self._owners.append(owner)
                self._owner_by_partition |= dict.fromkeys(mine, owner)


class Owner:
    """One stage in one worker, with the partitions of one assignment."""

    def __init__(self, group: StageGroup, worker: Worker, partitions: list[int]) -> None:
        self.worker = worker
        self._group, self._simulation, self._partitions = group, group.simulation, partitions
        self._env, self._costs = group.simulation.env, group.simulation.costs
        self._work: dict[int, StagePartition] = {}
        self._positions: dict[int, int] = {}
        self._committed_s: dict[int, float] = {}
        self._arrived = self._env.event()
        self.opened = self._env.event()
        self._process = self._env.process(self._live())

    def wake(self) -> None:
        """Say that there are records to read."""
        if not self._arrived.triggered:
            self._arrived.succeed()

    def stop(self) -> None:
        """End it where it is; its running transaction has no effect."""
        if self._process.is_alive and self._process is not self._env.active_process:
            self._process.interrupt()

    def _live(self) -> Waiting:
        try:
            yield from self._open()
            while True:
                while not self._has_records():
                    self._arrived = self._env.event()
                    yield self._arrived
                yield self._env.timeout(LINGER_S)
                yield from self._transact()
        except simpy.Interrupt:
            if not self.opened.triggered:
                self.opened.succeed()

    def _open(self) -> Waiting:
        stage, costs = self._group.stage, self._costs
        for number in self._partitions:
            committed = self._group.committed[number]
            work = StagePartition(stage, Partition(stage.input.name, number), app_version="")
            for row in committed.rows.items():
                work.restore(*row)
            yield from self.worker.cpu.work(costs.open_s + len(committed.rows) * costs.restore_row_s)
            self._work[number], self._positions[number] = work, committed.position
            self._committed_s[number] = self._env.now
        self.opened.succeed()

    def _has_records(self) -> bool:
        return any(self._log(number).end > position for number, position in self._positions.items())

    def _log(self, number: int) -> Any:
        return self._simulation.log(self._group.stage.input, number)

    def _transact(self) -> Waiting:
        """Take what is there, at most so many bytes; the partitions that come after it are first the next time."""
        parts: list[tuple[int, Processed, int]] = []
        size = 0
        for number in list(self._partitions):
            records = self._log(number).read(self._positions[number], MOST_RECORDS)
            if not records:
                continue
            hold = self._env.now < self._committed_s[number] + QUIET_S
            processed = self._process_records(number, records, hold=hold)
            yield from self.worker.cpu.work(self._cost_of(records))
            self._positions[number] = records[-1].offset + 1
            self._partitions.remove(number)
            self._partitions.append(number)
            if processed.quiet and hold:
                continue
            parts.append((number, processed, self._positions[number]))
            size += sum(len(row.value) for row in processed.outputs)
            if size > MOST_BYTES:
                break
        if parts:
            yield from self._commit(parts)

    def _process_records(self, number: int, records: list[Record], *, hold: bool) -> Processed:
        clock, outcome, name = self._simulation.clock, self._simulation.outcome, self._group.stage.name
        began = clock() if clock else 0.0
        processed = at_once(self._work[number].process(records, hold_quiet=hold))
        if clock:
            outcome.step_s[name] += clock() - began  # type: ignore[assignment]
        outcome.taken[name] += len(records)
        return processed

    def _cost_of(self, records: list[Record]) -> float:
        """Of a stage with a single partition, each record here is one of every share."""
        record_s = self._costs.step_s[self._group.stage.name] + self._costs.record_s
        cost = len(records) * record_s * (self._simulation.cluster.of_single if self._group.single else 1)
        if self._group.single:
            self._simulation.outcome.single_s[self._group.stage.name] += cost  # type: ignore[assignment]
        return cost

    def _commit(self, parts: list[tuple[int, Processed, int]]) -> Waiting:
        simulation, stage = self._simulation, self._group.stage
        began = self._env.now
        yield from self.worker.cpu.work(self._costs.transaction_s)
        writes, markers = self._written(parts)
        yield from simulation.brokers.commit(writes, markers, self.worker.number)
        yield self._env.timeout(self._costs.commit_wait_s + ROUND_TRIPS * simulation.cluster.data_centre.round_trip_s)
        simulation.outcome.transactions[stage.name] += 1
        simulation.outcome.markers += len(markers)
        simulation.outcome.commit_s += self._env.now - began
        for number, processed, end in parts:
            committed = self._group.committed[number]
            committed.position, self._committed_s[number] = end, self._env.now
            for key, value in processed.changelog:
                if value is None:
                    committed.rows.pop(key, None)
                else:
                    committed.rows[key] = value
            self._log(number).forget(end)
            for output in processed.outputs:
                simulation.emit(output)

    def _written(self, parts: list[tuple[int, Processed, int]]) -> tuple[dict[Place, Write], set[Place]]:
        """Return what each partition of the whole cluster gets, and those with a marker: the group's offsets too."""
        simulation, stage = self._simulation, self._group.stage
        sizes: dict[Place, tuple[int, int]] = {}

        def add(place: Place, values: Iterable[bytes | None]) -> None:
            records, size = sizes.get(place, (0, 0))
            for value in values:
                records, size = records + 1, size + len(value or b"")
            sizes[place] = records, size

        for number, processed, _ in parts:
            add((f"{stage.name}-changelog", number), (value for _, value in processed.changelog))
            for output in processed.outputs:
                add(simulation.place_of(topic_of(output.topic), output.key), (output.value,))
        return {place: Write(*counts) for place, counts in sizes.items()}, {*sizes, (f"{stage.name}-offsets", 0)}


def at_once(coroutine: Coroutine[Any, Any, Processed]) -> Processed:
    """Run a coroutine that only gives others their turn: the stages here ask nobody."""
    try:
        while True:
            coroutine.send(None)
    except StopIteration as end:
        processed: Processed = end.value
        return processed
