"""The transaction runner against a fake host and a fake producer: positions, pauses, failures, and the way back."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiokafka.errors import CommitFailedError, ProducerFenced

from rollbus.runtime.kafka.shared_reading import SharedReading
from rollbus.runtime.log_mark import LogId
from rollbus.schemas.codec import decode, encode
from rollbus.schemas.errors import DataLossError, RunStoppedError, UnavailableError
from rollbus.streams.exactly_once import changelog, runner, transaction
from rollbus.streams.exactly_once.batch import Batch, Partition
from rollbus.streams.exactly_once.changelog import position_row
from rollbus.streams.exactly_once.claims import Committed, parse
from rollbus.streams.exactly_once.processing import Processed, StagePartition
from rollbus.streams.exactly_once.runner import BATCHES_AHEAD, Runner
from rollbus.streams.exactly_once.transaction import ProducerSessions
from rollbus.streams.kafka.settings import StreamSettings
from tests.services.streams.fixtures import CountStage, tool_event
from tests.streams.exactly_once.test_transaction_parts import Raw

SETTINGS = StreamSettings(namespace="t.", linger_ms=0, equal_failures=2, event_partitions=1)
PLACE = Partition("t.episode-events", 0)
ME = "t.counter.me.1"


@dataclass
class Broker:
    """What a broker keeps of one stage's partition; a transaction counts once it is committed."""

    committed: int | None = None
    owner: str = ""
    """Who has committed."""
    claimed: list[Committed] = field(default_factory=list)
    expelled: bool = False
    """Whether the group has gone on without this process."""
    first: int = 0
    end: int = 100
    log: LogId = field(default_factory=lambda: LogId("cluster", "topic"))
    records: dict[int, Any] = field(default_factory=dict)
    """Those that can be read again, by offset."""
    changelog: dict[bytes, bytes | None] = field(default_factory=dict)
    outputs: list[Any] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    """What the next writes meet."""
    gate: asyncio.Event | None = None
    """Where it is set, commits wait for it."""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    """What the host was told, in order."""

    async def start(self) -> None:
        self.open: list[Any] = []

    async def begin_transaction(self) -> None:
        self.open = []

    async def send_offsets_to_transaction(self, offsets: dict[Any, tuple[int, str]], group: str) -> None:
        ((_, (self.offset, self.note)),) = offsets.items()

    async def commit_transaction(self) -> None:
        if self.gate is not None:
            await self.gate.wait()
        for row in self.open:
            if row.topic.endswith(".changelog"):
                self.changelog[row.key] = row.value
            else:
                self.outputs.append(row)
        self.committed, self.owner = self.offset, self.note


class Host:
    """Notes what it is told."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    async def committed(self, partition: Partition) -> Committed | None:
        return None if self.broker.committed is None else parse(self.broker.committed, self.broker.owner)

    async def claim(self, partition: Partition, claimed: Committed) -> None:
        await self.require_member()
        self.broker.claimed.append(claimed)

    async def require_member(self) -> None:
        if self.broker.expelled:
            raise CommitFailedError("the group has gone on")

    async def bounds(self, partition: Partition) -> tuple[int, int]:
        return self.broker.first, self.broker.end

    async def log_id(self, partition: Partition) -> LogId:
        return self.broker.log

    async def seek(self, partition: Partition, offset: int) -> None:
        self.broker.calls.append(("seek", offset))

    def pause(self, partition: Partition) -> None:
        self.broker.calls.append(("pause", partition.partition))

    def resume(self, partition: Partition) -> None:
        self.broker.calls.append(("resume", partition.partition))


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker = Broker()

    async def write(producer: Broker, rows: Sequence[Any]) -> None:
        producer.open = list(rows)
        if producer.failures:
            raise producer.failures.pop(0)

    async def restore(settings: Any, topic: str, partition: int, apply: Callable[[bytes, Any], None]) -> Any:
        for key, value in broker.changelog.items():
            if key != position_row(0)[0]:
                apply(key, value)
        row = broker.changelog.get(changelog.POSITION_KEY)
        mark = changelog._position(row)[1] if row is not None else None
        return changelog.Restored(broker.committed, len(broker.changelog), mark)

    async def partition_count(producer: Any, topic: str) -> int:
        return 1

    async def stop(producer: Any) -> None:
        broker.calls.append(("stop", 0))

    def new_producer(settings: StreamSettings, name: str) -> Broker:
        broker.calls.append(("producer", name))
        return broker

    async def read_one(reading: Any, topic: str, partition: int, offset: int) -> Any:
        return broker.records.get(offset)

    monkeypatch.setattr(SharedReading, "read_one", read_one)
    monkeypatch.setattr(transaction, "new_producer", new_producer)
    monkeypatch.setattr(transaction, "write", write)
    monkeypatch.setattr(changelog, "restore", restore)
    monkeypatch.setattr(transaction, "partition_count", partition_count)
    monkeypatch.setattr(transaction, "stop_producer", stop)
    monkeypatch.setattr(runner, "FIRST_PAUSE_S", 0.0)
    return broker


@asynccontextmanager
async def running(broker: Broker, fatal: list[BaseException] | None = None) -> AsyncIterator[Runner]:
    errors: list[BaseException] = [] if fatal is None else fatal
    runner, sessions = new_runner(broker, errors.append)
    runner.start()
    if fatal is None:
        await until(lambda: runner.ready)
    yield runner
    if broker.gate is not None:
        broker.gate.set()
    await runner.close()
    await sessions.close()
    assert fatal is not None or not errors


def new_runner(broker: Broker, on_fatal: Callable[[BaseException], None]) -> tuple[Runner, ProducerSessions]:
    sessions = ProducerSessions(SETTINGS, "t.counter", ME)
    runner = Runner(CountStage(), 0, settings=SETTINGS, sessions=sessions, host=Host(broker), on_fatal=on_fatal)
    return runner, sessions


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110 - looks at what the runner does
            await asyncio.sleep(0)


def batch(start: int | None, end: int) -> Batch:
    records = [Raw(offset, encode(tool_event("k", offset))) for offset in range(start or 0, end)]
    return Batch(PLACE, start, end, records)


def counted_tasks(broker: Broker) -> list[str]:
    return [decode(row.value).detail for row in broker.outputs]


async def test_a_position_knows_its_log_by_ids_and_the_last_record(broker: Broker) -> None:
    async with running(broker) as runner:
        runner.enqueue(batch(0, 3))
        await until(lambda: broker.committed == 3)
    broker.records[2] = batch(2, 3).records[0]
    async with running(broker) as runner:
        runner.enqueue(batch(3, 4))
        await until(lambda: broker.committed == 4)
    broker.records.clear()  # retention has deleted it: the ids still say which log it is
    async with running(broker):
        pass


@pytest.mark.parametrize(
    ("log", "record", "words"),
    [
        (LogId("cluster", "made again"), None, r"deleted and made again: its id is made again"),
        (LogId("elsewhere", "topic"), None, r"on cluster elsewhere, and the position is of cluster cluster"),
        (LogId("cluster", "topic"), Raw(2, b"of a backup"), r"its record 2 is not the one that was read"),
    ],
    ids=["topic made again", "another cluster", "restored backup"],
)
async def test_another_log_of_the_same_name_is_not_read(broker: Broker, log: LogId, record: Any, words: str) -> None:
    async with running(broker) as runner:
        runner.enqueue(batch(0, 3))
        await until(lambda: broker.committed == 3)
    broker.log, fatal = log, list[BaseException]()
    if record is not None:
        broker.records[2] = record
    broker.calls.clear()
    async with running(broker, fatal):
        await until(lambda: bool(fatal))
    assert isinstance(fatal[0], DataLossError)
    assert re.search(words, str(fatal[0]))
    assert "`rollbus worker accept-loss counter`" in str(fatal[0])
    assert ("resume", 0) not in broker.calls


async def test_a_position_without_a_mark_is_taken_as_it_is_and_gets_one(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.committed = 7
    broker.changelog[changelog.POSITION_KEY] = changelog.position_row(7)[1]
    with caplog.at_level(logging.INFO):
        async with running(broker) as runner:
            assert "position 7 of t.episode-events[0] has no mark yet; its topic id is topic" in caplog.text
            runner.enqueue(batch(7, 9))
            await until(lambda: broker.committed == 9)
    row = broker.changelog[changelog.POSITION_KEY]
    assert row is not None
    position, mark = changelog._position(row)
    assert (position, mark and (mark.topic_id, mark.last_offset)) == (9, ("topic", 8))


@pytest.mark.parametrize("owner", ["", ME], ids=["of nobody", "of its own, which is nothing to fence"])
async def test_a_runner_takes_batches_only_after_it_opened_at_its_offset(broker: Broker, owner: str) -> None:
    broker.committed, broker.owner = 7, owner
    runner, sessions = new_runner(broker, lambda error: None)
    runner.enqueue(batch(0, 3))
    assert not runner.ready
    runner.start()
    await until(lambda: runner.ready)
    assert broker.calls == [("producer", ME), ("seek", 7), ("resume", 0)]
    assert broker.outputs == []
    await runner.close()
    await sessions.close()


async def test_lag_is_known_while_the_state_is_restored(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the whole log counts as lag after every start, for as long as that takes."""
    broker.committed, restoring = 7, asyncio.Event()

    async def restore(*_: Any) -> Any:
        restoring.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(changelog, "restore", restore)
    opening, sessions = new_runner(broker, lambda error: None)
    assert not opening.is_position_known
    opening.start()
    await restoring.wait()
    assert opening.is_position_known
    assert (opening.metrics.position, opening.ready) == (7, False)
    await opening.close()
    await sessions.close()


async def test_a_batch_is_one_transaction_with_outputs_rows_and_offset(broker: Broker) -> None:
    async with running(broker) as runner:
        runner.enqueue(batch(0, 3))
        await until(lambda: broker.committed == 3)
    assert counted_tasks(broker) == ["k:1", "k:2", "k:3"]
    assert len(broker.changelog) == 2  # the count of k, and the position


async def test_waiting_batches_are_taken_together_without_overlaps(broker: Broker) -> None:
    async with running(broker) as runner:
        for batch_of_offsets in (batch(0, 3), batch(1, 5), batch(0, 2)):
            runner.enqueue(batch_of_offsets)
        await until(lambda: broker.committed == 5)
    assert counted_tasks(broker) == [f"k:{number}" for number in range(1, 6)]


@pytest.mark.parametrize("start", [4, None])
async def test_a_batch_that_does_not_continue_the_position_rewinds(broker: Broker, start: int | None) -> None:
    async with running(broker) as runner:
        runner.enqueue(batch(0, 2))
        await until(lambda: broker.committed == 2)
        broker.calls.clear()
        runner.enqueue(batch(start, 6))
        await until(lambda: ("seek", 2) in broker.calls)
        runner.enqueue(batch(2, 6))
        await until(lambda: broker.committed == 6)
    assert broker.calls[:2] == [("seek", 2), ("resume", 0)]
    assert counted_tasks(broker) == [f"k:{number}" for number in range(1, 7)]


async def test_a_runner_pauses_its_partition_while_batches_wait(broker: Broker) -> None:
    broker.gate = asyncio.Event()
    async with running(broker) as runner:
        runner.enqueue(batch(0, 1))
        await until(lambda: runner._writing)
        for start in range(1, 1 + BATCHES_AHEAD):
            assert ("pause", 0) not in broker.calls
            runner.enqueue(batch(start, start + 1))
        assert broker.calls[-1] == ("pause", 0)
        broker.gate.set()
        await until(lambda: broker.committed == 1 + BATCHES_AHEAD)
        assert broker.calls[-1] == ("resume", 0)


async def test_a_partition_paused_for_repeated_batches_is_resumed(broker: Broker) -> None:
    broker.gate = asyncio.Event()
    async with running(broker) as runner:
        runner.enqueue(batch(0, 4))
        await until(lambda: runner._writing)
        for start in range(BATCHES_AHEAD):
            runner.enqueue(batch(start, start + 1))
        assert broker.calls[-1] == ("pause", 0)
        broker.gate.set()
        await until(lambda: broker.calls[-1] == ("resume", 0))
        runner.enqueue(batch(4, 5))
        await until(lambda: broker.committed == 5)
    assert counted_tasks(broker) == [f"k:{number}" for number in range(1, 6)]


@pytest.mark.parametrize("error", [OSError("gone"), TimeoutError(), UnavailableError("payload"), ValueError("once")])
async def test_a_runner_continues_from_the_committed_offset_after_a_failure(broker: Broker, error: Exception) -> None:
    async with running(broker) as runner:
        runner.enqueue(batch(0, 2))
        await until(lambda: broker.committed == 2)
        broker.failures.append(error)
        broker.calls.clear()
        runner.enqueue(batch(2, 4))
        await until(lambda: ("seek", 2) in broker.calls)
        assert broker.calls == [("pause", 0), ("stop", 0), ("producer", ME), ("seek", 2), ("resume", 0)]
        runner.enqueue(batch(2, 4))
        await until(lambda: broker.committed == 4)
    assert counted_tasks(broker) == ["k:1", "k:2", "k:3", "k:4"]
    assert runner.metrics.failures == 1


@pytest.mark.parametrize(
    ("error", "times"), [(OSError("gone"), 4), (UnavailableError("payload"), 4), (asyncio.CancelledError(), 1)]
)
async def test_an_error_of_a_service_or_client_never_ends_a_runner(
    broker: Broker, error: BaseException, times: int
) -> None:
    assert SETTINGS.equal_failures < 4
    fatal: list[BaseException] = []
    async with running(broker, fatal) as runner:
        for _ in range(times):
            await until(lambda: runner.ready)
            broker.failures.append(error)
            runner.enqueue(batch(0, 2))
            await until(lambda: not broker.failures)
            await until(lambda: not runner.ready)
        await until(lambda: runner.ready)
        runner.enqueue(batch(0, 2))
        await until(lambda: broker.committed == 2)
    assert fatal == []


async def test_a_repeated_failure_at_one_place_ends_the_runner(broker: Broker) -> None:
    fatal: list[BaseException] = []
    async with running(broker, fatal) as runner:
        for _ in range(SETTINGS.equal_failures):
            await until(lambda: runner.ready)
            broker.failures.append(ValueError("always"))
            runner.enqueue(batch(0, 2))
            await until(lambda: not broker.failures)
            await until(lambda: not runner.ready)
        await until(lambda: bool(fatal))
    (error,) = fatal
    assert isinstance(error, RunStoppedError)
    assert "from offset 0" in str(error)


async def test_an_end_by_an_unusual_exception_is_also_reported(broker: Broker) -> None:
    class Panic(BaseException):
        pass

    fatal: list[BaseException] = []
    async with running(broker, fatal) as runner:
        await until(lambda: runner.ready)
        broker.failures.append(Panic("a broken extension"))
        runner.enqueue(batch(0, 2))
        await until(lambda: bool(fatal))
    assert [str(error) for error in fatal] == [
        "task runner counter[0] has ended although nobody stopped it: Panic('a broken extension')"
    ]


async def test_a_new_owner_fences_the_last_one_before_it_claims_the_partition(broker: Broker) -> None:
    broker.committed, broker.owner = 7, "claimed by t.counter.other.1"
    async with running(broker):
        assert broker.calls[:3] == [("producer", ME), ("producer", "t.counter.other.1"), ("stop", 0)]
        assert broker.claimed == [Committed(7, ME, "claim")]


async def test_the_first_owner_of_all_claims_the_beginning(broker: Broker) -> None:
    broker.first = 3
    async with running(broker) as runner:
        assert broker.claimed == [Committed(3, ME, "first claim")]
        runner.enqueue(batch(3, 5))
        await until(lambda: broker.committed == 5)
    assert broker.owner == ME


async def test_a_failed_transaction_is_followed_by_a_new_claim(broker: Broker) -> None:
    """An heir may have fenced the last session, which is why it failed, and have claimed nothing yet."""
    async with running(broker) as work:
        broker.failures.append(OSError("gone"))
        work.enqueue(batch(0, 2))
        await until(lambda: not broker.failures and not work.ready)
        await until(lambda: work.ready)
    assert broker.claimed == [Committed(0, ME, "first claim")] * 2


async def test_a_committed_but_unreadable_record_is_waited_for(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka says that a transaction is committed some milliseconds before its readers see it."""
    fail = [False]

    class Failing(StagePartition):
        async def process(self, records: Sequence[Any], **options: Any) -> Processed:
            if fail.pop():
                raise OSError("the judge is gone")
            return await super().process(records, **options)

    monkeypatch.setattr(runner, "StagePartition", Failing)
    async with running(broker) as work:
        work.enqueue(batch(0, 2))
        await until(lambda: broker.committed == 2)
        broker.committed, readable, rows = None, broker.committed, dict(broker.changelog)
        broker.changelog.clear()
        fail.append(True)
        work.enqueue(batch(2, 4))
        await until(lambda: work.metrics.failures == 3)
        assert not work.ready
        broker.committed = readable
        broker.changelog.update(rows)
        await until(lambda: work.ready)
        fail.append(False)
        work.enqueue(batch(2, 4))
        await until(lambda: broker.committed == 4)
    assert counted_tasks(broker) == ["k:1", "k:2", "k:3", "k:4"]


async def test_a_former_member_fences_no_producer(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.committed, broker.owner, broker.expelled = 7, "t.counter.heir.2", True
    fatal: list[BaseException] = []
    async with running(broker, fatal) as runner:
        await until(lambda: runner.metrics.failures == 1)
        assert ("producer", "t.counter.heir.2") not in broker.calls
        assert not runner.ready
    assert (broker.claimed, fatal) == ([], [])


@pytest.mark.parametrize(
    ("committed", "owner", "described"),
    [(3, "", 3), (3, Committed(3, ME, "first claim").note, None), (None, "", 3)],
    ids=["at any time", "since the first claim of one that failed from then on", "with the broker's offset"],
)
async def test_records_that_retention_took_are_never_stepped_over(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, committed: int | None, owner: str, described: int | None
) -> None:
    """A stage that fails from its first batch on, or a worker that stands still, may do so for longer than a week."""
    broker.committed, broker.owner, broker.first = committed, owner, 9

    async def restore(*_: Any) -> changelog.Restored:
        return changelog.Restored(described, 0)

    async def claim(self: Host, partition: Partition, claimed: Committed) -> None:
        broker.committed, broker.owner = claimed.offset, claimed.note

    monkeypatch.setattr(changelog, "restore", restore)
    monkeypatch.setattr(Host, "claim", claim)
    fatal: list[BaseException] = []
    async with running(broker, fatal):
        await until(lambda: bool(fatal))
    assert "records 3 … 8 were deleted by retention" in str(fatal[0])
    assert ("resume", 0) not in broker.calls


async def test_a_fenced_worker_writes_nothing(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    fatal: list[BaseException] = []
    async with running(broker, fatal) as runner:
        await until(lambda: runner.ready)
        broker.failures.append(ProducerFenced())
        runner.enqueue(batch(0, 2))
        await until(lambda: runner.metrics.failures == 1)
        runner.enqueue(batch(0, 2))
        assert not runner.ready
    assert (broker.outputs, broker.committed, fatal) == ([], None, [])


async def test_closing_lets_a_running_transaction_end(broker: Broker) -> None:
    broker.gate = asyncio.Event()
    async with running(broker) as runner:
        runner.enqueue(batch(0, 2))
        await until(lambda: runner._writing)
        closing = asyncio.create_task(runner.close())
        await asyncio.sleep(0)
        assert not runner.ready
        broker.gate.set()
        await closing
    assert broker.committed == 2


async def test_a_runner_that_ends_late_does_not_pause_its_successor(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last call, such as one to a consumer that cannot be stopped, may last longer than a rebalance waits."""
    usual, opening, released = changelog.restore, asyncio.Event(), asyncio.Event()

    async def restore(*given: Any) -> Any:
        try:
            opening.set()
            await asyncio.Event().wait()
        finally:
            await released.wait()

    monkeypatch.setattr(changelog, "restore", restore)
    monkeypatch.setattr(runner, "CLOSE_S", 0.0)
    late, sessions = new_runner(broker, lambda error: None)
    late.start()
    await opening.wait()
    await late.close()
    monkeypatch.setattr(changelog, "restore", usual)
    async with running(broker):
        released.set()
        assert late._task is not None
        await asyncio.wait([late._task])
        assert broker.calls[-1] == ("resume", 0)
    await sessions.close()
