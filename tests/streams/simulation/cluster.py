"""Workers that crash, freeze, hand over and come back, over the real stages and a log in memory.

What they do with a batch is what live does: `StagePartition` reads, asks, steps, encodes and keeps dead letters.
A task is one stage on one partition. Its work is a generator that stops wherever a process could die or lose its
partition: after opening, after the step, with half of the outputs sent, with all sent, after the commit. To crash is to
forget the generator; a zombie is one that goes on although another worker has opened the same task.
"""

import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from rollbus.schemas.topics import STAGE_INPUTS, topic_of
from rollbus.streams.batch import Partition
from rollbus.streams.processing import Encoded, StagePartition
from rollbus.streams.stages import AnyStage
from tests.streams.simulation.log import Broker, FencedError, Place
from tests.streams.simulation.naive import ended

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
    held: int = -1
    """Up to where its work has come by ticks of which nothing followed, beyond what is committed; forgotten with it."""

    def stop(self) -> None:
        """Forget the work where it stands."""
        self.work, self.held = None, -1


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
        self.hurries = False
        """Whether quiet ticks no longer wait for a transaction that has more to say."""
        self.assign()

    def assign(self) -> None:
        """Spread the tasks over the workers anew; who loses a task may not notice."""
        for task in self.tasks:
            worker = self.chance.randrange(self.workers)
            if worker != task.worker:
                if task.work is not None and self.chance.random() < 0.5:
                    self.zombies.append(task.work)
                task.stop()
                task.worker = worker

    def crash(self, worker: int) -> None:
        """Let all work of a worker end where it stands; others, or its next life, take over later."""
        for task in self.tasks:
            if task.worker == worker:
                task.stop()
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
            task.stop()

    def _has_more(self, task: Task) -> bool:
        if not self.broker.is_waiting(task.place, max(task.held, self.broker.offsets[task.name])):
            return True
        # what a dead owner left open holds up the readers until the next one opens the task
        return task.work is None and self.broker.has_open(task.name)

    def _work(self, task: Task) -> Generator[None]:
        broker, chance = self.broker, self.chance
        epoch = broker.register(task.name)
        yield
        position = broker.offsets[task.name]
        work = self._restored(task)
        ticked = task.stage.input in STAGE_INPUTS.values()
        yield
        while True:
            batch = broker.read(task.place, position, chance.choice((1, 3, 50)))
            if batch.end == position:
                yield
                continue
            hold = ticked and not self.hurries and chance.random() < 0.5
            processed = ended(work.process(batch.records, hold_quiet=hold))
            if hold and processed.quiet:
                task.held = position = batch.end
                yield
                continue
            yield
            transaction = broker.begin(task.name, epoch)
            half = chance.randint(0, len(processed.outputs))
            self._send(transaction, processed.outputs[:half])
            yield
            broker.log_rows(transaction, processed.changelog)
            self._send(transaction, processed.outputs[half:])
            broker.send_offset(transaction, batch.end)
            yield
            broker.commit(transaction, batch.end)
            position = batch.end
            yield

    def _send(self, transaction: Any, outputs: Sequence[Encoded]) -> None:
        for out in outputs:
            self.broker.send(transaction, topic_of(out.topic), out.key or b"", out.value)

    def _restored(self, task: Task) -> StagePartition:
        """Read the state back from its changelog, as written or as compacted, rows in any order then."""
        work, rows = (
            StagePartition(task.stage, Partition(*task.place), app_version=""),
            self.broker.changelogs[task.name],
        )
        if rows and self.chance.random() < 0.5:
            latest = dict(rows)
            rows = [(key, latest[key]) for key in self.chance.sample(list(latest), len(latest))]
        for key, value in rows:
            work.restore(key, value)
        return work
