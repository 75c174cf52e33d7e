"""Workers that crash, freeze, hand over and come back, over the real stages and a log in memory.

A task is one stage on one partition. Its work is a generator that stops wherever a process could die or lose its
partition: after opening, after the step, with half of the outputs sent, with all sent, after the commit. To crash is to
forget the generator; a zombie is one that goes on although another worker has opened the same task.
"""

import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from rollbus.schemas.codec import encode
from rollbus.streams.stage import Outgoing
from rollbus.streams.stages import AnyStage
from tests.streams.simulation.log import Broker, FencedError, Place
from tests.streams.simulation.taking import take

MOST_ROUNDS = 200
"""A history that settles takes a few, and a task a few dozen points in each."""


@dataclass(slots=True, eq=False)
class Task:
    """One stage on one partition, and who works on it."""

    stage: AnyStage
    partition: int
    name: str
    """Also the writer's name: one transactional id per input partition."""
    place: Place
    worker: int = 0
    work: Generator[None] | None = None


class Cluster:
    """Tasks, the workers that own them, and zombies."""

    def __init__(self, broker: Broker, stages: Sequence[AnyStage], chance: random.Random, workers: int) -> None:
        self.broker, self.chance, self.workers = broker, chance, workers
        self.tasks = [
            Task(stage, number, f"{stage.name}-{number}", (stage.input.name, number))
            for stage in stages
            for number in range(broker.partitions_of(stage.input))
        ]
        self.zombies: list[Generator[None]] = []
        self.assign()

    def assign(self) -> None:
        """Spread the tasks over the workers anew; who loses a task may not notice."""
        for task in self.tasks:
            worker = self.chance.randrange(self.workers)
            if worker != task.worker:
                if task.work is not None and self.chance.random() < 0.5:
                    self.zombies.append(task.work)
                task.work, task.worker = None, worker

    def crash(self, worker: int) -> None:
        """Let all work of a worker end where it stands; others, or its next life, take over later."""
        for task in self.tasks:
            if task.worker == worker:
                task.work = None
        self.assign()

    def advance(self) -> bool:
        """Let a random task with something to do go one point further; False where nothing is to do."""
        waiting = [task for task in self.tasks if self._has_more(task)]
        if waiting:
            self.resume(self.chance.choice(waiting))
        return bool(waiting)

    def wake_zombie(self) -> None:
        """Let a zombie go one point further, most likely into its fence."""
        if self.zombies:
            index = self.chance.randrange(len(self.zombies))
            try:
                next(self.zombies[index])
            except FencedError:
                del self.zombies[index]

    def settle(self) -> None:
        """Let everybody work until nothing is left to read."""
        for _ in range(MOST_ROUNDS):
            waiting = [task for task in self.tasks if self._has_more(task)]
            if not waiting:
                return
            for task in waiting:
                for _ in range(MOST_ROUNDS):
                    self.resume(task)
                    if not self._has_more(task):
                        break
        raise AssertionError(f"no end in sight: {', '.join(task.name for task in waiting)}")

    def resume(self, task: Task) -> None:
        """Go on with a task; one that was fenced begins anew."""
        if task.work is None:
            task.work = self._work(task)
        try:
            next(task.work)
        except FencedError:
            task.work = None

    def _has_more(self, task: Task) -> bool:
        if not self.broker.is_waiting(task.place, self.broker.offsets[task.name]):
            return True
        # what a dead owner left open holds up the readers until the next one opens the task
        return task.work is None and self.broker.has_open(task.name)

    def _work(self, task: Task) -> Generator[None]:
        broker, chance = self.broker, self.chance
        epoch = broker.register(task.name)
        yield
        position = broker.offsets[task.name]
        state = self._restored(task)
        yield
        while True:
            batch, end = broker.read(task.place, position, chance.choice((1, 3, 50)))
            if end == position:
                yield
                continue
            outputs = take(task.stage, state, batch)
            rows = state.drain()
            yield
            transaction = broker.begin(task.name, epoch)
            half = chance.randint(0, len(outputs))
            self._send(transaction, outputs[:half])
            yield
            broker.log_rows(transaction, rows)
            self._send(transaction, outputs[half:])
            broker.send_offset(transaction, end)
            yield
            broker.commit(transaction, end)
            position = end
            yield

    def _send(self, transaction: Any, outputs: Sequence[Outgoing]) -> None:
        for out in outputs:
            self.broker.send(transaction, out.topic, out.key, out.record, encode(out.record))

    def _restored(self, task: Task) -> Any:
        """Read the state back from its changelog, as written or as compacted, rows in any order then."""
        state, rows = task.stage.new_state(), self.broker.changelogs[task.name]
        if rows and self.chance.random() < 0.5:
            latest = dict(rows)
            rows = [(key, latest[key]) for key in self.chance.sample(list(latest), len(latest))]
        for key, value in rows:
            state.restore(key, value)
        return state


def undisturbed(task: Task, broker: Broker) -> tuple[Any, list[Outgoing]]:
    """Return the state and the outputs of a stage that takes the same input in one life, record by record."""
    state = task.stage.new_state()
    outputs: list[Outgoing] = []
    for incoming in broker.committed(task.stage.input, task.partition):
        outputs += take(task.stage, state, [incoming])
    return state, outputs
