"""The end of a process is held back within one deadline, whatever is flushed or closed, and how often."""

import subprocess
import sys
import textwrap
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest

from rollbus.producers.delivery import process_hooks
from rollbus.schemas.records.events import EpisodeEnded, ToolCalled, WriterClosed
from tests.producers.recorded import read_spool


class SlowRecorder:
    """Uses up all the time that it is given."""

    def __init__(self, clock: list[float]) -> None:
        self.clock = clock

    def after_fork(self) -> None:
        """Nothing to do."""

    def leave(self) -> None:
        """Nothing to do."""

    def flush(self, timeout: float) -> bool:
        self.clock[0] += timeout
        return False

    def close(self, timeout: float) -> bool:
        return self.flush(timeout)


def test_flushing_and_closing_share_the_deadline_of_the_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    recorders = [SlowRecorder(clock), SlowRecorder(clock)]
    monkeypatch.setattr(process_hooks, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(process_hooks, "_recorders", weakref.WeakSet(recorders))
    monkeypatch.setattr(process_hooks, "_spent_s", 0.0)
    process_hooks._flush_all()
    clock[0] += 3600  # the host's own threads take as long as they like in between
    process_hooks._close_all()
    assert clock[0] == 100.0 + 3600 + process_hooks.EXIT_DEADLINE_S


NO_NAMES = """
    import socket, threading, time

    asked = threading.Event()

    def hang(*arguments, **options):
        print("asked", flush=True)
        asked.set()
        time.sleep(600)

    socket.getaddrinfo = hang
    import rollbus
    from rollbus.producers.delivery import process_hooks

    process_hooks.EXIT_DEADLINE_S = 0.5
    recorder = rollbus.init(bootstrap_servers="kafka.example:9092")
    with recorder.episode(task="t"):
        pass
    asked.wait()
"""


def test_a_name_server_that_does_not_answer_does_not_hold_the_process_back() -> None:
    script = [sys.executable, "-c", textwrap.dedent(NO_NAMES)]
    ended = subprocess.run(script, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout.split()) == (0, ["asked"]), ended.stderr


CHILDREN = """
    import multiprocessing, sys
    import rollbus

    recorder = rollbus.init(bootstrap_servers="127.0.0.1:9", spool_folder=sys.argv[1])

    def work(episode):
        episode.tool("in the child")

    with recorder.episode(task="t") as episode:
        child = multiprocessing.get_context("fork").Process(target=work, args=(episode,))
        child.start()
        child.join()
"""


def test_a_child_of_multiprocessing_closes_its_part_of_an_episode(tmp_path: Path) -> None:
    script = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(CHILDREN), str(tmp_path)]
    subprocess.run(script, capture_output=True, timeout=120, check=True)
    events = read_spool(tmp_path)
    (called,) = [event for event in events if isinstance(event, ToolCalled)]
    (ended,) = [event for event in events if isinstance(event, EpisodeEnded)]
    assert called.writer_id not in ended.writer_ids
    counts = {event.writer_id: event.count for event in events if isinstance(event, WriterClosed)}
    assert counts[called.writer_id] == 1


IMPORTED_BY_THREADS = """
    import sys, threading
    import rollbus

    imported = set()

    def note(event, details):
        if event == "import" and threading.current_thread() is not threading.main_thread():
            imported.add(details[0])

    sys.addaudithook(note)
    recorder = rollbus.init(bootstrap_servers="127.0.0.1:9", spool_folder=sys.argv[1], route=["agent"])
    with recorder.episode(task="t") as episode:
        recorder.outbox.routed({"model": "agent"}, "e")
        episode.tool("hammer")
    recorder.flush(2)
    print(*sorted(imported))
"""


def test_no_thread_of_ours_imports_for_that_can_change_what_the_application_sees(tmp_path: Path) -> None:
    """A Protocol of an Iterable that a thread defined made `isinstance(None, Iterable)` true for good, in one of some
    thousand runs of an example; and a child that was forked meanwhile waited for the module for ever."""
    script = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(IMPORTED_BY_THREADS), str(tmp_path)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == []
