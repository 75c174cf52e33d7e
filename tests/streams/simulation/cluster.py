"""Workers that crash, freeze, hand over and come back, over the real stages and a log in memory.

What they do with a batch is what live does: `StagePartition` reads, asks, steps, encodes and keeps dead letters.
A task is one stage on one partition. Its work is a generator that stops wherever a process could die or lose its
partition: while it takes over, after opening, after the step, with half of the outputs sent, with all sent, after the
commit. A worker's tasks of one stage write their transactions together. To crash is to forget the generators; a zombie
is one that goes on although another worker has opened the same task.
"""

import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from rollbus.schemas.topics import STAGE_INPUTS, topic_of
from rollbus.streams.exactly_once.batch import Partition
from rollbus.streams.exactly_once.processing import Encoded, Processed, StagePartition
from rollbus.streams.exactly_once.rounds import header_of
from rollbus.streams.exactly_once.runner import OnTick
from rollbus.streams.pipeline import AnyStage
from tests.streams.simulation.log import Broker, FencedError, Place, Transaction
from tests.streams.simulation.naive import run_to_end

MOST_ROUNDS = 200
"""A history that settles takes a few, and a task a few dozen points in each."""


@dataclass(slots=True, eq=False)
class Part:
    """What a task adds to a transaction."""

    task: str
    processed: Processed
    end: int
    done: bool = False


class Session:
    """One life of the producer that a worker's tasks of one stage share; a task that waits for it brings it on."""

    def __init__(self, broker: Broker, chance: random.Random, name: str) -> None:
        self.name, self.ended = name, False
        self.waiting: list[Part] = []
        self._broker, self._chance, self._epoch = broker, chance, broker.register(name)
        self._work = self._transactions()

    def advance(self) -> None:
        """Go one point further; raises FencedError, to all of its users."""
        if self.ended:
            raise FencedError(f"{self.name} has ended")
        try:
            next(self._work)
        except FencedError:
            self.ended = True
            raise

    def _transactions(self) -> Generator[None]:
        broker = self._broker
        while True:
            parts, self.waiting = self.waiting, []
            if not parts:
                yield
                continue
            transaction = broker.begin(self.name, self._epoch)
            for part in parts:
                outputs = part.processed.outputs
                half = self._chance.randint(0, len(outputs))
                _send(broker, transaction, part.task, outputs[:half])
                yield
                broker.log_rows(transaction, part.task, part.processed.changelog)
                _send(broker, transaction, part.task, outputs[half:])
                broker.send_offset(transaction, part.task, part.end)
                yield
            broker.commit(transaction)
            for part in parts:
                part.done = True
            yield


def _send(broker: Broker, transaction: Transaction, task: str, outputs: Sequence[Encoded]) -> None:
    for out in outputs:
        headers = header_of(out.topic, out.round)
        broker.send(transaction, task, topic_of(out.topic), out.key or b"", out.value, headers)


@dataclass(slots=True, eq=False)
class Task:
    """One stage on one partition, and who works on it."""

    stage: AnyStage
    partition: int
    name: str
    place: Place
    worker: int = 0
    work: Generator[None] | None = None
    held_offset: int = -1
    """Up to where its work has come by ticks of which nothing followed, beyond what is committed; forgotten with it."""

    is_committing: bool = False
    """Whether it has not yet reported what it gives to a transaction."""

    def stop(self) -> None:
        """Forget the work where it stands."""
        self.work, self.held_offset, self.is_committing = None, -1, False


class Cluster:
    """Tasks, the workers that own them, and zombies."""

    def __init__(self, broker: Broker, stages: Sequence[AnyStage], chance: random.Random, workers: int) -> None:
        self.broker, self.chance, self.workers = broker, chance, workers
        self.tasks = [
            Task(stage, number, f"{stage.name}-{number}", (stage.input.name, number))
            for stage in stages
            for number in range(broker.partitions_of(stage.input))
        ]
        self.zombies: list[tuple[Task, Generator[None]]] = []
        self.sessions: dict[tuple[int, str], Session] = {}
        """By worker and stage, those of the present generation."""
        self.on_tick: OnTick = lambda *_: None
        """Told which tick a stage has passed on a partition."""
        self.hurries = False
        """Whether quiet ticks no longer wait for a transaction that has more to say."""
        self.assign()

    def assign(self) -> None:
        """Spread the tasks over the workers again; one that loses a task may not notice, the others begin theirs."""
        self.broker.generation += 1
        self.sessions.clear()
        for task in self.tasks:
            worker = self.chance.randrange(self.workers)
            if worker != task.worker and task.work is not None and self.chance.random() < 0.5:
                self.zombies.append((task, task.work))
            task.stop()
            task.worker = worker

    def crash(self, worker: int) -> None:
        """Let all work of a worker end where it stands; others, or its next life, take over later."""
        for task in self.tasks:
            if task.worker == worker:
                task.stop()
        self.assign()

    def replace_stages(self, stages: Sequence[AnyStage]) -> None:
        """Let the next lives of all tasks have these stages, which have other settings."""
        by_name = {stage.name: stage for stage in stages}
        for task in self.tasks:
            task.stage = by_name[task.stage.name]

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
            task, work = self.zombies[index]
            of_the_owner = task.held_offset, task.is_committing
            try:
                next(work)
            except FencedError:
                del self.zombies[index]
            task.held_offset, task.is_committing = of_the_owner

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
        """Go on with a task; one that was fenced begins again."""
        if task.work is None:
            task.work = self._work(task)
        try:
            next(task.work)
        except FencedError:
            task.stop()

    def _has_more(self, task: Task) -> bool:
        if task.is_committing:
            return True
        if not self.broker.is_waiting(task.place, max(task.held_offset, self.broker.offsets[task.name])):
            return True
        # what a dead owner left open holds up the readers until the next one opens the task
        return task.work is None and self.broker.has_open(self.broker.owners.get(task.name, ""))

    def _session(self, task: Task) -> Session:
        place = task.worker, task.stage.name
        session = self.sessions.get(place)
        if session is None or session.ended:
            name = f"{task.stage.name}.{task.worker}.{self.broker.generation}"
            session = self.sessions[place] = Session(self.broker, self.chance, name)
        return session

    def _open_task(self, task: Task, session: Session, generation: int) -> Generator[None, None, int]:
        """Fence the last owner and claim the task; return where it goes on."""
        broker, fenced = self.broker, {"", session.name}
        while (owner := broker.owners.get(task.name, "")) not in fenced:
            broker.require(generation)
            yield
            broker.register(owner)
            fenced.add(owner)
            yield
        position = broker.offsets[task.name]
        yield
        broker.claim(task.name, session.name, position, generation)
        yield
        return position

    def _work(self, task: Task) -> Generator[None]:
        broker, chance, generation = self.broker, self.chance, self.broker.generation
        session = self._session(task)
        yield
        position = yield from self._open_task(task, session, generation)
        work = self._restore_task(task)
        self.on_tick(task.stage.name, task.partition, work.last_tick, False)
        ticked = task.stage.input in STAGE_INPUTS.values()
        yield
        while True:
            batch = broker.read(task.place, position, chance.choice((1, 3, 50)))
            if batch.end == position:
                yield
                continue
            hold = ticked and not self.hurries and chance.random() < 0.5
            processed = run_to_end(work.process(batch.records, hold_quiet=hold))
            if hold and processed.quiet:
                task.held_offset = position = batch.end
                self._pass_tick(task, processed)
                yield
                continue
            yield
            part = Part(task.name, processed, batch.end)
            session.waiting.append(part)
            task.is_committing = True
            while not part.done:
                session.advance()
                yield
            position, task.is_committing = batch.end, False
            self._pass_tick(task, processed)
            yield

    def _pass_tick(self, task: Task, processed: Processed) -> None:
        if processed.tick is not None:
            self.on_tick(task.stage.name, task.partition, processed.tick, not processed.quiet)

    def _restore_task(self, task: Task) -> StagePartition:
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
