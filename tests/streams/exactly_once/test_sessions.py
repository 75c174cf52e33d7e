"""What partitions share: one transaction at a time, for all that have something to write, and one failure for all."""

import asyncio
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiokafka.errors import ProducerFenced

from rollbus.runtime.kafka.writing import Row
from rollbus.schemas.errors import UnavailableError
from rollbus.streams.exactly_once import transaction
from rollbus.streams.exactly_once.batch import Partition
from rollbus.streams.exactly_once.transaction import ProducerSession, ProducerSessions
from rollbus.streams.kafka.settings import StreamSettings

SETTINGS = StreamSettings(namespace="t.", linger_ms=0)
ID = "t.counter.me.1"


@dataclass
class Broker:
    """Commits transactions, each once `gate` lets it."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    written: list[list[bytes | None]] = field(default_factory=list)
    offsets: list[dict[int, int]] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    lives: list[str] = field(default_factory=list)
    stopped: int = 0


class Producer:
    """One life of a transactional id."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.broker, self.name = broker, name
        self.rows: list[bytes | None] = []

    async def start(self) -> None:
        self.broker.lives.append(self.name)

    async def begin_transaction(self) -> None:
        self.offsets: dict[Any, Any] = {}

    async def send_offsets_to_transaction(self, offsets: dict[Any, Any], group: str) -> None:
        assert group == "t.counter"
        self.offsets = {place.partition: offset for place, (offset, _) in offsets.items()}

    async def commit_transaction(self) -> None:
        await self.broker.gate.wait()
        if self.broker.failures:
            raise self.broker.failures.pop(0)
        self.broker.written.append(self.rows)
        self.broker.offsets.append(self.offsets)


@pytest.fixture
async def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker = Broker()
    broker.gate.set()

    async def write(producer: Any, rows: list[Row]) -> None:
        producer.rows = [row.value for row in rows]

    async def stop(producer: Any) -> None:
        broker.stopped += 1

    monkeypatch.setattr(transaction, "new_producer", lambda settings, name: Producer(broker, name))
    monkeypatch.setattr(transaction, "write", write)
    monkeypatch.setattr(transaction, "stop_producer", stop)
    return broker


@pytest.fixture
async def session(broker: Broker) -> ProducerSession:
    return await ProducerSessions(SETTINGS, "t.counter", ID).get()


def place(number: int) -> Partition:
    return Partition("t.episode-events", number)


def commit(session: ProducerSession, number: int, end: int, size: int = 1) -> asyncio.Task[None]:
    value = b"%d" % number * size
    return asyncio.create_task(session.commit(place(number), end, [Row("t.out", 0, None, value)]))


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_commits_during_a_transaction_share_the_next_transaction(
    broker: Broker, session: ProducerSession
) -> None:
    broker.gate.clear()
    tasks = [commit(session, 0, 5)]
    await turns()
    tasks += [commit(session, 1, 6), commit(session, 2, 7)]
    await turns()
    assert not any(task.done() for task in tasks)
    broker.gate.set()
    await asyncio.gather(*tasks)
    assert broker.offsets == [{0: 5}, {1: 6, 2: 7}]
    assert broker.written == [[b"0"], [b"1", b"2"]]


async def test_a_transaction_waits_for_partitions_that_prepare_a_commit(
    broker: Broker, session: ProducerSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "STEP_S", 3600.0)
    step = asyncio.Event()

    async def work() -> None:
        with session.preparing():
            await step.wait()
        await session.commit(place(1), 6, [])

    tasks = [asyncio.create_task(work()), commit(session, 0, 5)]
    await turns()
    assert broker.offsets == []
    step.set()
    await asyncio.gather(*tasks)
    assert broker.offsets == [{0: 5, 1: 6}]


async def test_a_transaction_does_not_wait_long_for_a_slow_partition(broker: Broker, session: ProducerSession) -> None:
    with session.preparing():
        async with asyncio.timeout(120):
            await commit(session, 0, 5)
    assert broker.offsets == [{0: 5}]


async def test_parts_without_records_are_not_waited_for(
    broker: Broker, session: ProducerSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "STEP_S", 3600.0)
    with session.preparing():
        task = commit(session, 0, 5)
        await turns()
    async with asyncio.timeout(120):
        await task
    assert broker.offsets == [{0: 5}]


async def test_a_transaction_takes_no_more_than_its_bound_but_one_part_at_least(
    broker: Broker, session: ProducerSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "MOST_BYTES", 10)
    sizes = [30, 4, 6, 1]
    await asyncio.gather(*(commit(session, number, 1, size) for number, size in enumerate(sizes)))
    assert broker.offsets == [{0: 1}, {1: 1, 2: 1}, {3: 1}]


@pytest.mark.parametrize("error", [OSError("gone"), ValueError("odd"), TimeoutError()])
async def test_a_failure_reaches_all_parts_and_ends_the_session(broker: Broker, error: Exception) -> None:
    sessions = ProducerSessions(SETTINGS, "t.counter", ID)
    session = await sessions.get()
    broker.gate.clear()
    broker.failures.append(error)
    parts = [commit(session, 0, 5), commit(session, 1, 6)]
    await turns()
    waiting = commit(session, 2, 7)
    await turns()
    broker.gate.set()
    outcomes = await asyncio.gather(*parts, waiting, commit(session, 3, 8), return_exceptions=True)
    assert outcomes[:2] == [error, error]
    assert [type(outcome) for outcome in outcomes[2:]] == [UnavailableError, UnavailableError]
    assert broker.written == []
    assert session.ended


async def test_all_users_of_a_fenced_producer_are_fenced(broker: Broker, session: ProducerSession) -> None:
    broker.failures.append(ProducerFenced())
    await asyncio.gather(commit(session, 0, 5), return_exceptions=True)
    with pytest.raises(ProducerFenced):
        await commit(session, 1, 6)


async def test_an_ended_sessions_traceback_does_not_grow_by_partition(broker: Broker, session: ProducerSession) -> None:
    broker.failures.append(OSError("gone"))
    await asyncio.gather(commit(session, 0, 5), return_exceptions=True)
    lengths = []
    for partition in range(1, 4):
        with pytest.raises(UnavailableError) as refusal:
            await commit(session, partition, 6)
        lengths.append(len(list(traceback.walk_tb(refusal.value.__traceback__))))
    assert len(set(lengths)) == 1


async def test_after_a_failure_there_is_one_new_session_for_all(broker: Broker) -> None:
    sessions = ProducerSessions(SETTINGS, "t.counter", ID)
    first = await sessions.get()
    broker.failures.append(OSError("gone"))
    await asyncio.gather(commit(first, 0, 5), return_exceptions=True)
    outcomes = await asyncio.gather(sessions.get(), sessions.get())
    assert outcomes[0] is outcomes[1] is not first
    assert (broker.lives, broker.stopped) == ([ID, ID], 1)
    await commit(outcomes[0], 0, 5)
    assert broker.offsets == [{0: 5}]


async def test_an_unwritable_part_fails_alone_the_next_time(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else those that shared its transaction are stopped for it, and named in its place."""

    async def write(producer: Any, rows: list[Row]) -> None:
        if any(row.value == b"1" for row in rows):
            raise ValueError("too large")
        producer.rows = [row.value for row in rows]

    monkeypatch.setattr(transaction, "write", write)
    sessions = ProducerSessions(SETTINGS, "t.counter", ID)
    first = await sessions.get()
    together = await asyncio.gather(commit(first, 0, 5), commit(first, 1, 6), return_exceptions=True)
    assert [type(outcome) for outcome in together] == [ValueError, ValueError]
    for _ in range(2):
        session = await sessions.get()
        tasks = [commit(session, 0, 5), commit(session, 1, 6), commit(session, 2, 7)]
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [type(None), ValueError, UnavailableError]
    assert broker.offsets == [{0: 5}] * 2


async def test_parts_that_succeeded_alone_share_a_transaction_again(broker: Broker) -> None:
    sessions = ProducerSessions(SETTINGS, "t.counter", ID)
    broker.failures.append(OSError("gone"))
    await asyncio.gather(commit(await sessions.get(), 0, 5), return_exceptions=True)
    session = await sessions.get()
    await asyncio.gather(*(commit(session, number, 5) for number in range(3)))
    await asyncio.gather(*(commit(session, number, 6) for number in range(4)))
    assert broker.offsets == [{0: 5}, {1: 5}, {2: 5}, {0: 6, 1: 6, 2: 6}, {3: 6}]


async def test_a_cancellation_inside_a_client_fails_the_parts(broker: Broker, session: ProducerSession) -> None:
    broker.failures.append(asyncio.CancelledError())
    (outcomes,) = await asyncio.gather(commit(session, 0, 5), return_exceptions=True)
    assert isinstance(outcomes, asyncio.CancelledError)
    assert session.ended


async def test_closing_lets_the_running_transaction_end_and_takes_nothing_more(broker: Broker) -> None:
    sessions = ProducerSessions(SETTINGS, "t.counter", ID)
    session = await sessions.get()
    broker.gate.clear()
    running = commit(session, 0, 5)
    await turns()
    waiting = commit(session, 1, 6)
    closing = asyncio.create_task(sessions.close())
    await turns()
    broker.gate.set()
    await closing
    await running
    with pytest.raises(UnavailableError):
        await waiting
    assert (broker.offsets, broker.stopped) == ([{0: 5}], 1)


async def test_a_part_whose_partition_was_closed_is_left_out(broker: Broker, session: ProducerSession) -> None:
    broker.gate.clear()
    running = commit(session, 0, 5)
    await turns()
    closed, other = commit(session, 1, 6), commit(session, 2, 7)
    await turns()
    closed.cancel()
    broker.gate.set()
    await asyncio.gather(running, other)
    assert broker.offsets == [{0: 5}, {2: 7}]


async def test_an_owner_is_fenced_once_for_all_partitions(broker: Broker, session: ProducerSession) -> None:
    await asyncio.gather(*(session.fence("t.counter.other.1") for _ in range(4)))
    assert broker.lives == [ID, "t.counter.other.1"]


async def test_a_session_that_does_not_start_is_stopped_and_the_next_one_is_new(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    start: Callable[[Producer], Any] = Producer.start

    async def refused(self: Producer) -> None:
        raise OSError("no broker")

    monkeypatch.setattr(Producer, "start", refused)
    sessions = ProducerSessions(SETTINGS, "t.counter", ID)
    with pytest.raises(OSError, match="no broker"):
        await sessions.get()
    assert broker.stopped == 1
    monkeypatch.setattr(Producer, "start", start)
    await (await sessions.get()).commit(place(0), 5, [])
    assert broker.offsets == [{0: 5}]
