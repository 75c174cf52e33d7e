"""The spool keeps what no broker takes, through outages and the death of the process, in order and within its quota."""

import asyncio
import errno
import fcntl
import os
import shutil
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbus.producers import MemorySink, Outbound, init
from rollbus.producers.sending.counters import Counters
from rollbus.producers.sending.spool import Spool
from rollbus.producers.sending.spool_sink import SpoolSink
from rollbus.schemas.errors import UnavailableError
from tests.producers.sending.sink_contract import SinkContract
from tests.producers.sending.test_delivery_faults import StuckSink
from tests.waiting import wait_until

QUOTA = 1_000_000


def make(folder: Path, owner: str = "one", quota_bytes: int = QUOTA) -> Spool:
    """A spool without fsync, which tests need not wait for."""
    return Spool(folder, owner=owner, quota_bytes=quota_bytes, fsync=False)


def record(number: int) -> Outbound:
    """A small record."""
    return Outbound("t.episode-events", b"key", f"value-{number}".encode(), number)


def drain_spool(spool: Spool) -> list[Outbound]:
    """All records in order; the spool is empty then."""
    records = []
    while spool:
        records += spool.oldest()
        spool.discard_oldest()
    return records


def test_only_the_spool_of_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    dead, alive = make(tmp_path, "dead"), make(tmp_path, "alive")
    dead.append([record(0)])
    alive.append([record(1)])
    dead.close()
    spool = make(tmp_path, "next")
    assert drain_spool(spool) == [record(0)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alive", "next"]
    spool.close()
    alive.close()


@pytest.mark.parametrize(("module", "step"), [(os, "open"), (fcntl, "flock")])
def test_two_processes_that_open_a_folder_at_once_both_have_a_spool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, step: str
) -> None:
    others, do = list[Spool](), getattr(module, step)

    def after_another(*arguments: Any) -> Any:
        monkeypatch.undo()
        others.append(make(tmp_path, "other"))
        return do(*arguments)

    monkeypatch.setattr(module, step, after_another)
    spools = [make(tmp_path), *others]
    for number, spool in enumerate(spools):
        spool.append([record(number)])
    third = make(tmp_path, "third")
    assert not third, "a folder is not locked"
    assert [drain_spool(spool) for spool in spools] == [[record(0)], [record(1)]]
    for spool in (*spools, third):
        spool.close()
    assert list(tmp_path.iterdir()) == []


def test_a_process_waits_until_another_has_looked_through_its_new_folder(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    lock = os.open(tmp_path / "one" / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    timer = threading.Timer(0.1, os.close, [lock])
    timer.start()
    spool = make(tmp_path)
    timer.join()
    spool.append([record(0)])
    assert drain_spool(spool) == [record(0)]
    spool.close()


def test_a_folder_that_another_process_keeps_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollbus.producers.sending.spool.OPEN_S", 0.05)
    spool = make(tmp_path)
    with pytest.raises(BlockingIOError):
        make(tmp_path)
    spool.close()


@given(st.data())
def test_a_spool_torn_at_any_byte_keeps_the_records_before_it(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("torn")
    spool = make(folder)
    spool.append([record(number) for number in range(3)])
    (path,) = folder.rglob("*.segment")
    size = path.stat().st_size
    cut = data.draw(st.integers(0, size))
    if data.draw(st.booleans()):
        os.truncate(path, cut)
    elif cut < size:
        content = bytearray(path.read_bytes())
        content[cut] ^= 0xFF
        path.write_bytes(content)
    whole = cut * 3 // size
    assert drain_spool(spool)[:whole] == [record(number) for number in range(whole)]
    spool.close()


def test_a_full_disk_leaves_no_half_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = make(tmp_path)
    spool.append([record(0)])
    write = os.write

    def half(descriptor: int, data: Any) -> int:
        monkeypatch.setattr(os, "write", full)
        return write(descriptor, data[:5])

    def full(descriptor: int, data: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(UnavailableError, match="No space left"):
        spool.append([record(1)])
    monkeypatch.setattr(os, "write", write)
    spool.append([record(2)])
    assert drain_spool(spool) == [record(0), record(2)]
    assert spool.torn_bytes == 0
    spool.close()


def test_a_fork_while_a_segment_is_being_closed_leaves_the_folder_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = make(tmp_path)
    spool.append([record(0)])
    close, closed = os.close, list[int]()

    def close_and_fork(descriptor: int) -> None:
        close(descriptor)
        closed.append(descriptor)
        if len(closed) == 1:
            spool.after_fork()  # what a child does that is forked now

    monkeypatch.setattr(os, "close", close_and_fork)
    spool.oldest()
    monkeypatch.undo()
    assert len(closed) == len(set(closed))
    successor = make(tmp_path, "next")
    assert drain_spool(successor) == [record(0)]
    successor.close()


def test_a_child_process_does_not_hold_the_folder_of_a_dead_parent(tmp_path: Path) -> None:
    program = """
        import os, sys, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        from rollbus.producers import MemorySink, init
        sink = MemorySink()
        sink.available = False
        recorder = init(sink=sink, namespace="t.", spool_folder=sys.argv[1])
        with recorder.episode(task="t") as episode:
            episode.tool("of the parent")
            recorder.flush(120)
            if os.fork():
                os._exit(0)
            print("alive", flush=True)
            sys.stdin.read()
            recorder.tool("of the child")
        recorder.close(120)
    """
    arguments = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "alive\n"
        child.wait()
        spool = make(tmp_path, "next")
        kept_bytes = b"".join(record.value for record in drain_spool(spool))
        spool.close()
        assert b"of the parent" in kept_bytes
        child.stdin.close()
        child.stdout.read()
    spool = make(tmp_path, "last")
    assert b"of the child" in b"".join(record.value for record in drain_spool(spool))
    spool.close()
    assert list(tmp_path.iterdir()) == []


class TestSpoolSink(SinkContract):
    """A spool before a sink that works changes nothing."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.inner, self.folder = MemorySink(), tmp_path

    async def make(self) -> SpoolSink:
        """Return a sink that is not started."""
        return SpoolSink(lambda: self.inner, lambda: make(self.folder), Counters())

    async def received(self, sink: SpoolSink, count: int) -> list[tuple[bytes, bytes, int]]:
        """Key, value and timestamp of what arrived."""
        return [(sent.key, sent.value, sent.timestamp_ms) for sent in self.inner.sent]

    def limit(self, sink: SpoolSink) -> int:
        """Make the inner sink refuse large values."""
        self.inner.largest_bytes = 1000
        return 2000


async def test_an_outage_goes_over_the_disk_in_order(tmp_path: Path) -> None:
    inner, counters = MemorySink(), Counters()
    sink = SpoolSink(lambda: inner, lambda: make(tmp_path), counters)
    await sink.start()
    await sink.send([record(0)])
    inner.available = False
    for number in range(1, 5):
        await sink.send([record(number)])
    inner.available = True
    await sink.send([record(5)])
    assert sink._draining is not None
    await sink._draining
    await sink.send([record(6)])
    assert inner.sent == [record(number) for number in range(7)]
    assert counters.get("records_spooled") == counters.get("records_drained") == 5
    await sink.close()
    assert os.listdir(tmp_path) == []


async def test_a_deleted_spool_folder_costs_only_its_records(tmp_path: Path) -> None:
    inner, counters = MemorySink(), Counters()
    inner.available = False
    sink = SpoolSink(lambda: inner, lambda: make(tmp_path / "spool"), counters)
    await sink.start()
    await sink.send([record(0)])
    shutil.rmtree(tmp_path / "spool")
    assert sink._draining is not None
    await sink._draining  # there is nothing left to send
    await sink.send([record(1)])
    assert inner.sent == []
    inner.available = True
    await sink._draining
    await sink.send([record(2)])
    assert inner.sent == [record(1), record(2)]
    assert counters.get("spool_torn_bytes") > 0
    await sink.close()
    assert os.listdir(tmp_path / "spool") == []


def test_a_full_spool_is_named_and_sent_as_soon_as_there_is_a_broker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = MemorySink()
    sink.available = False
    recorder = init(sink=sink, namespace="t.", spool_folder=tmp_path, spool_bytes=3000)
    episodes = []
    for _ in range(20):
        with recorder.episode(task="t") as episode:
            episode.tool("x", result="y" * 200)
        episodes.append(episode.id)
        recorder.flush(0.05)
        if recorder.counters.get("delivery_retries"):
            break
    wait_until(lambda: recorder.counters.get("delivery_retries", 0) > 0, "the spool is not full")
    assert recorder.counters["records_spooled"] > 0
    assert "events wait in memory" in caplog.text
    assert "is full: 3000 bytes" in caplog.text
    sink.available = True
    assert recorder.flush(120)
    assert recorder.close(120)
    sent = list(dict.fromkeys((event.episode_id, event.sequence) for event in sink.records("episode-events")))
    assert sent == [(episode_id, sequence) for episode_id in episodes for sequence in range(4)]
    assert os.listdir(tmp_path) == []


def test_a_recorder_whose_events_only_reach_the_disk_is_not_healthy(tmp_path: Path) -> None:
    sink = MemorySink()
    recorder = init(sink=sink, namespace="t.", spool_folder=tmp_path)
    episode = recorder.start(task="t")
    assert recorder.flush(120)
    assert recorder.healthy
    sink.available = False
    episode.tool("x")
    assert recorder.flush(120)
    assert recorder.healthy is False
    sink.available = True

    def is_healthy() -> bool | None:
        episode.tool("x")
        return recorder.healthy

    wait_until(is_healthy, "the sink is asked again only after a pause")
    assert recorder.close(120)


def test_without_a_disk_events_are_sent_as_without_a_spool(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("where a folder should be made")
    sink = MemorySink()
    recorder = init(sink=sink, namespace="t.", spool_folder=tmp_path / "file")
    with recorder.episode(task="t"):
        pass
    assert recorder.flush(120)
    sink.available = False
    with recorder.episode(task="t"):
        pass
    assert not recorder.flush(0.2)
    sink.available = True
    assert recorder.close(120)
    assert len(sink.records("episode-events")) == 6
    assert recorder.counters["spool_unavailable"] > 0


async def test_a_sink_that_never_acknowledges_is_not_waited_for(tmp_path: Path) -> None:
    sink = SpoolSink(StuckSink, lambda: make(tmp_path), Counters(), patience_s=0.05)
    await sink.start()
    assert await sink.send([record(0)]) == frozenset()
    await sink.close()
    spool = make(tmp_path, "next")
    assert drain_spool(spool) == [record(0)]
    spool.close()


class LingeringSink(MemorySink):
    """Never ends its close."""

    async def close(self) -> None:
        await asyncio.Event().wait()


async def test_a_close_that_is_cut_off_leaves_the_records_to_the_next_process(tmp_path: Path) -> None:
    sink = SpoolSink(LingeringSink, lambda: make(tmp_path), Counters())
    await sink.start()
    await sink.send([record(0)])
    await sink.keep([record(1)])
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(sink.close(), 0.05)
    spool = make(tmp_path, "next")
    assert drain_spool(spool) == [record(1)]
    spool.close()
