"""Two processes with real `StageApp`s and `Runner`s over a log in memory, under any schedule of what befalls them.

Partitions move, owners linger on as zombies, batches come late, twice, not at all or from before a seek, transactions
fail before and after they count: each event is counted once, in its partition's order, and all of them are in the end.
Only Faust's fetching and Kafka itself are replaced; the log is that of the simulated cluster, as strict as Kafka's.
"""

import asyncio
import logging
import random
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiokafka.errors import CommitFailedError, KafkaConnectionError, ProducerFenced
from faust.types import TP
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbus.runtime.kafka.writing import Row
from rollbus.runtime.log_mark import LogId
from rollbus.schemas.codec import encode
from rollbus.schemas.topics import DROPS, EPISODE_EVENTS, topic_of
from rollbus.streams.exactly_once import changelog, runner, transaction
from rollbus.streams.exactly_once.batch import Batch, Partition
from rollbus.streams.exactly_once.changelog import POSITION_KEY
from rollbus.streams.exactly_once.claims import Committed, parse
from rollbus.streams.exactly_once.processing import Processed, StagePartition
from rollbus.streams.exactly_once.runner import Runner
from rollbus.streams.exactly_once.transaction import ProducerSession
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.worker import app as app_module
from rollbus.streams.worker.app import StageApp
from tests.builders import make_tick
from tests.examples import count_examples
from tests.services.streams.fixtures import CountStage, tool_event
from tests.streams.simulation.log import Broker, FencedError, Transaction

PARTITIONS = 3
SETTINGS = StreamSettings(namespace="t.", linger_ms=0, event_partitions=PARTITIONS).model_copy(
    update={"session_timeout_s": 0.0, "equal_failures": 10_000}
)
FOREVER_S = 1e9
PATIENCE = 20_000
"""Turns of the event loop for what a few hundred settle."""
SHARES = {"publish": 9, "tick": 2, "fetch": 6, "deliver": 6, "repeat": 1, "lose": 1, "turns": 3}
SHARES |= {"rebalance": 1, "freeze": 1, "fail": 1, "lost answer": 1, "no answer": 2, "markers": 1}
"""What may happen, and how often in a long schedule."""
EVENTS = EPISODE_EVENTS.full_name(SETTINGS.namespace)


def place_of(number: int) -> Partition:
    return Partition(EVENTS, number)


def task_of(number: int) -> str:
    return f"counter[{number}]"


@dataclass(eq=False)
class Process:
    """A worker's fetching: what Faust does for a stage."""

    world: "World"
    owned: set[int] = field(default_factory=set)
    positions: dict[int, int] = field(default_factory=dict)
    """From where the next batch of a partition is fetched."""
    open: set[int] = field(default_factory=set)
    """Partitions that are not paused."""
    flights: deque[Batch] = field(default_factory=deque)
    handed: list[Batch] = field(default_factory=list)
    hosted: StageApp = field(init=False)
    arrived: asyncio.Queue[Batch] = field(default_factory=asyncio.Queue)
    passing: asyncio.Task[None] = field(init=False)

    def __post_init__(self) -> None:
        name = f"process-{len(self.world.processes)}"
        self.hosted = StageApp(CountStage(), SETTINGS, on_fatal=self.world.fatal.append, process_id=name)
        self.hosted.app.process = self  # type: ignore[attr-defined]
        self.passing = asyncio.create_task(self.hosted._pass_on(self._batches()))

    async def _batches(self) -> AsyncIterator[Batch]:
        while True:
            yield await self.arrived.get()

    def fetch(self) -> None:
        """Read one batch of each partition that is owned, wanted and has more; it is handed over later."""
        for number in sorted(self.owned & self.open & self.positions.keys()):
            start = self.positions[number]
            fetched = self.world.broker.read((EPISODE_EVENTS.name, number), start, self.world.chance.choice((1, 2, 50)))
            if fetched.end > start:
                self.positions[number] = fetched.end
                self.flights.append(Batch(place_of(number), start, fetched.end, fetched.records))

    def deliver(self) -> None:
        """Hand over the oldest batch."""
        if self.flights:
            self.handed.append(self.flights.popleft())
            self.arrived.put_nowait(self.handed[-1])

    async def take(self, numbers: set[int]) -> None:
        """Lose all partitions and be given others, as a rebalance does it."""
        await self.hosted._revoked(self.hosted.app, {TP(*place_of(number)) for number in self.owned})
        self.owned, self.positions, self.open = numbers, {}, set()
        self.hosted.app.consumer_generation_id = self.world.broker.generation
        await self.hosted._assigned(self.hosted.app, {TP(*place_of(number)) for number in numbers})


class Host:
    """What a runner asks of its process; takes FaustHost's place."""

    def __init__(self, app: Any, generation: int) -> None:
        self._process: Process = app.process
        self._broker, self._generation = self._process.world.broker, generation

    async def committed(self, partition: Partition) -> Committed | None:
        await self._process.world.turn()
        task = task_of(partition.partition)
        offset = self._broker.offsets.get(task)
        return None if offset is None else parse(offset, self._broker.owners[task])

    async def claim(self, partition: Partition, claimed: Committed) -> None:
        await self._process.world.trouble()
        task = task_of(partition.partition)
        _as_of_group(lambda: self._broker.claim(task, claimed.note, claimed.offset, self._generation))
        await self._process.world.trouble(lost_answer=True)

    async def require_member(self) -> None:
        await self._process.world.turn()
        if self._process.world.chance.random() < 0.5:  # else it has just been told the opposite
            _as_of_group(lambda: self._broker.require(self._generation))

    async def bounds(self, partition: Partition) -> tuple[int, int]:
        await self._process.world.turn()
        return 0, len(self._process.world.broker.entries[EPISODE_EVENTS.name, partition.partition])

    async def log_id(self, partition: Partition) -> LogId:
        return LogId("cluster", "topic")

    async def seek(self, partition: Partition, offset: int) -> None:
        await self._process.world.trouble()
        self._process.positions[partition.partition] = offset

    def pause(self, partition: Partition) -> None:
        self._process.open.discard(partition.partition)

    def resume(self, partition: Partition) -> None:
        if partition.partition in self._process.owned:
            self._process.open.add(partition.partition)


class Work(StagePartition):
    """The stage at work, which may fail as whatever it asks for an answer may."""

    async def process(self, records: Sequence[Any], **options: Any) -> Processed:
        world = WORLD.get()
        await world.turn()
        if world.refuse_next:
            world.refuse_next -= 1
            raise OSError("no answer")
        return await super().process(records, **options)


def _as_of_group(call: Callable[[], Any]) -> None:
    try:
        call()
    except FencedError as error:
        raise CommitFailedError from error


class Producer:
    """One life of a transactional id; every call lets others go on first, and may fail."""

    def __init__(self, world: "World", writer: str) -> None:
        self._world, self._writer = world, writer
        self._transaction: Transaction | None = None

    async def start(self) -> None:
        await self._world.turn()
        self._epoch = self._world.broker.register(self._writer)

    async def begin_transaction(self) -> None:
        await self._world.trouble()
        self._transaction = self._fenced(lambda: self._world.broker.begin(self._writer, self._epoch))

    async def write(self, rows: Sequence[Row]) -> None:
        """Append rows; those of the changelog say whose the outputs after them are."""
        task, transaction = "", self._transaction
        assert transaction is not None
        for row in rows:
            await self._world.trouble()
            name = row.topic.removeprefix(SETTINGS.namespace)
            if name.endswith("changelog"):
                task = task_of(row.partition)
                self._world.broker.log_rows(transaction, task, [(row.key or b"", row.value)])
            else:
                sent = (transaction, task, topic_of(name), row.key or b"", row.value or b"")
                self._fenced(lambda: self._world.broker.send(*sent))  # noqa: B023

    async def send_offsets_to_transaction(self, offsets: dict[Any, tuple[int, str]], group: str) -> None:
        await self._world.trouble()
        for place, (offset, note) in offsets.items():
            assert note == self._writer
            self._world.broker.send_offset(self._transaction, task_of(place.partition), offset)  # type: ignore[arg-type]

    async def commit_transaction(self) -> None:
        await self._world.trouble()
        late = self._world.chance.random() < 0.5
        self._fenced(lambda: self._world.broker.commit(self._transaction, late=late))  # type: ignore[arg-type]
        await self._world.trouble(lost_answer=True)

    def _fenced(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except FencedError as error:
            raise ProducerFenced from error


class World:
    """The log, two processes, and what is about to go wrong."""

    def __init__(self, seed: int) -> None:
        self.chance, self.broker = random.Random(seed), Broker(PARTITIONS)
        self.fatal: list[BaseException] = []
        self.fail_next, self.lose_next, self.refuse_next = 0, 0, 0
        self.published: dict[int, list[str]] = defaultdict(list)
        self.ticks = 0
        self.processes: list[Process] = []

    async def turn(self) -> None:
        """Let others go on, or not."""
        for _ in range(self.chance.randrange(3)):
            await asyncio.sleep(0)

    async def trouble(self, *, lost_answer: bool = False) -> None:
        """Let others go on, and fail if that is due: a lost answer is of a transaction that counts."""
        await self.turn()
        if lost_answer and self.lose_next:
            self.lose_next -= 1
            raise TimeoutError("no answer")
        if not lost_answer and self.fail_next:
            self.fail_next -= 1
            raise self.chance.choice((KafkaConnectionError("gone"), OSError("gone"), ValueError("odd")))

    async def act(self, action: str) -> None:
        """Do one thing that may happen."""
        number, process = self.chance.randrange(PARTITIONS), self.chance.choice(self.processes)
        if action == "publish":
            self.publish(number)
        elif action == "tick":
            self.tick()
        elif action == "fetch":
            process.fetch()
        elif action == "deliver":
            process.deliver()
        elif action == "repeat" and process.handed:
            process.arrived.put_nowait(self.chance.choice(process.handed))
        elif action == "lose" and process.flights:
            process.flights.popleft()
        elif action == "rebalance":
            await self.rebalance()
        elif action == "freeze":  # it goes on with what it has, and the other has it too
            self.broker.generation += 1
            await self.chance.choice(self.processes).take(set(range(PARTITIONS)))
        elif action == "fail":
            self.fail_next += 1
        elif action == "lost answer":
            self.lose_next += 1
        elif action == "no answer":
            self.refuse_next += 1
        elif action == "markers":
            self.broker.complete_all()
        for _ in range(self.chance.randrange(12)):
            await asyncio.sleep(0)

    def publish(self, number: int) -> None:
        """Append an event to a partition."""
        key = f"k{number}"
        event = tool_event(key, len(self.published[number]))
        self.published[number].append(event.event_id)
        self.broker.publish(EPISODE_EVENTS, key, encode(event), partition=number)

    def tick(self) -> None:
        """Append a tick to every partition."""
        for number in range(PARTITIONS):
            self.broker.publish(EPISODE_EVENTS, "", encode(make_tick(self.ticks)), partition=number)
        self.ticks += 1

    async def rebalance(self) -> None:
        """Spread the partitions again, in any order of the processes."""
        self.broker.generation += 1
        owners = [self.chance.choice(self.processes) for _ in range(PARTITIONS)]
        for process in self.chance.sample(self.processes, 2):
            await process.take({number for number, owner in enumerate(owners) if owner is process})

    async def settle(self) -> None:
        """Let nothing more go wrong, and everybody work until all is read."""
        self.fail_next = self.lose_next = self.refuse_next = 0
        await self.rebalance()
        for _ in range(PATIENCE):
            if not self.fatal and all(self.is_read(number) for number in range(PARTITIONS)):
                return
            assert not self.fatal, self.fatal
            for process in self.processes:
                process.fetch()
                process.deliver()
            self.broker.complete_all()
            await asyncio.sleep(0)
        raise AssertionError("no end in sight")

    def is_read(self, number: int) -> bool:
        """Say whether the owner of a partition has come to its end."""
        runners = [
            process.hosted.runners.get(place_of(number)) for process in self.processes if number in process.owned
        ]
        end = len(self.broker.entries[EPISODE_EVENTS.name, number])
        return any(runner is not None and runner.ready and runner.metrics.position >= end for runner in runners)

    async def end(self) -> None:
        """Stop everybody."""
        for process in self.processes:
            await process.hosted._close_all()
            process.passing.cancel()
            await asyncio.wait([process.passing])

    def check(self) -> None:
        """Compare what was counted with what was published, partition by partition."""
        counted: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for (task, (topic, _)), written in self.broker.written().items():
            if topic == DROPS.name:
                counted[task] += [(record.unit_id, record.detail) for _, record in written]
        for number in range(PARTITIONS):
            expected = [(name, f"k{number}:{at}") for at, name in enumerate(self.published[number], 1)]
            assert sorted(counted[task_of(number)], key=lambda row: int(row[1].partition(":")[2])) == expected


WORLD: ContextVar[World] = ContextVar("world")


@pytest.fixture(autouse=True)
def _simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace Kafka, and time as far as the runner waits."""

    async def write(producer: Producer, rows: Sequence[Row]) -> None:
        await producer.write(rows)

    async def restore(
        settings: StreamSettings, topic: str, partition: int, apply: Callable[[bytes, bytes | None], None]
    ) -> changelog.Restored:
        world = WORLD.get()
        rows, described = list(world.broker.changelogs[task_of(partition)]), None
        for key, value in rows:
            if key == POSITION_KEY and value is not None:
                described = changelog._position(value)[0]
            else:
                apply(key, value)
        await world.turn()
        return changelog.Restored(described, len(rows))

    async def partition_count(producer: Producer, topic: str) -> int:
        return PARTITIONS

    async def stop(producer: Producer) -> None:
        await WORLD.get().turn()

    for name in ("runner", "app"):
        monkeypatch.setattr(logging.getLogger(f"rollbus.streams.{name}"), "disabled", True)
    monkeypatch.setattr(app_module, "FaustHost", Host)
    monkeypatch.setattr(transaction, "new_producer", lambda settings, name: Producer(WORLD.get(), name))
    monkeypatch.setattr(transaction, "write", write)
    monkeypatch.setattr(changelog, "restore", restore)
    monkeypatch.setattr(transaction, "partition_count", partition_count)
    monkeypatch.setattr(transaction, "stop_producer", stop)
    monkeypatch.setattr(runner, "StagePartition", Work)
    monkeypatch.setattr(runner, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(runner, "LONGEST_PAUSE_S", 0.0)


async def live(seed: int, actions: Sequence[str]) -> None:
    """Let a schedule happen and compare."""
    world = World(seed)
    WORLD.set(world)
    for _ in range(2):
        world.processes.append(Process(world))
    try:
        await world.rebalance()
        for action in actions:
            await world.act(action)
        await world.settle()
    finally:
        await world.end()
    world.check()


def schedule(seed: int) -> list[str]:
    chance = random.Random(seed)
    return chance.choices(list(SHARES), weights=list(SHARES.values()), k=chance.randint(20, 80))


@pytest.mark.parametrize("quiet_s", [0.0, FOREVER_S])
def test_every_event_is_counted_once_and_in_order(quiet_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "QUIET_S", quiet_s)

    @settings(max_examples=count_examples(60))
    @given(st.integers(0, 10**6), st.lists(st.sampled_from(sorted(SHARES)), max_size=60))
    def check(seed: int, actions: list[str]) -> None:
        asyncio.run(live(seed, actions))

    check()


def first_failure(seeds: Iterable[int]) -> tuple[int, AssertionError] | None:
    """The first schedule that does not hold, and why."""
    for seed in seeds:
        try:
            asyncio.run(live(seed, schedule(seed)))
        except AssertionError as error:
            return seed, error
    return None


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 150, 50))
def test_long_schedules_hold_too(start: int) -> None:
    failure = first_failure(range(start, start + 50))
    if failure is not None:
        raise AssertionError(f"schedule {failure[0]}: {failure[1]}") from failure[1]


def _takes_all(self: Runner) -> Any:
    async def first() -> Batch:
        while not self._queue:
            self._arrived.clear()
            await self._arrived.wait()
        return self._queue.popleft()

    return first()


async def _nobody(self: ProducerSession, owner: str) -> None:
    """Fence nobody."""


BUGS: dict[str, tuple[type, str, Any]] = {
    "takes what does not continue the position": (Runner, "_first_batch", _takes_all),
    "never asks for a partition again": (Runner, "_resume", lambda self: None),
    "takes again what it has had of a batch": (Batch, "after", lambda self, position: self),
    "claims a partition whose last owner may still write": (ProducerSession, "fence", _nobody),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_runner_with_a_bug_is_detected(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*BUGS[bug])
    monkeypatch.setattr("tests.streams.exactly_once.test_runner_schedules.PATIENCE", 500)
    assert first_failure(range(100)) is not None
