"""The end of a process: held back within one deadline, whatever is flushed or closed, and how often; and SIGTERM of a
program that handles no signal: with a spool nothing is lost that was emitted.
"""

import signal
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest

from rollbus.producers.sending import process_hooks
from rollbus.schemas.records.events import ToolCalled
from tests.producers.recorded_events import read_spool, run_program


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
    from rollbus.producers.sending import process_hooks

    process_hooks.EXIT_DEADLINE_S = 0.5
    recorder = rollbus.init(bootstrap_servers="kafka.example:9092")
    with recorder.episode(task="t"):
        pass
    asked.wait()
"""


def test_a_name_server_that_does_not_answer_does_not_hold_the_process_back() -> None:
    ended = run_program(NO_NAMES)
    assert (ended.returncode, ended.stdout.split()) == (0, ["asked"]), ended.stderr


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


def test_no_thread_of_ours_imports_a_module(tmp_path: Path) -> None:
    """A Protocol of an Iterable that a thread defined made `isinstance(None, Iterable)` true for good, in one of some
    thousand runs of an example; and a child that was forked meanwhile waited for the module for ever."""
    completed = run_program(IMPORTED_BY_THREADS, tmp_path)
    assert (completed.returncode, completed.stdout.split()) == (0, []), completed.stderr


TERMINATED_PROGRAM = """
    import os, signal, sys, time
    import rollbus

    recorder = rollbus.init(bootstrap_servers="127.0.0.1:9", spool_folder=sys.argv[1])
    with recorder.episode(task="t") as episode:
        for number in range(300):
            episode.tool("count", arguments={"number": number})
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(600)
"""
PROGRAM_WITH_HANDLER = """
    import os, signal, sys
    import rollbus

    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(7))
    recorder = rollbus.init(bootstrap_servers="127.0.0.1:9", spool_folder=sys.argv[1])
    with recorder.episode(task="t") as episode:
        episode.tool("count")
        os.kill(os.getpid(), signal.SIGTERM)
"""
TWICE = """
    import os, signal, sys, time
    import rollbus

    recorder = rollbus.init(bootstrap_servers="127.0.0.1:9", spool_folder=sys.argv[1])
    recorder.flush = lambda timeout: time.sleep(600)
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(600)
"""


def tools_in(folder: Path) -> list[str]:
    """The arguments of the tool calls on disk."""
    return [event.arguments for event in read_spool(folder) if isinstance(event, ToolCalled)]


def test_events_before_sigterm_are_on_disk_when_the_process_ends(tmp_path: Path) -> None:
    assert run_program(TERMINATED_PROGRAM, tmp_path).returncode == -signal.SIGTERM
    assert tools_in(tmp_path) == [f'{{"number":{number}}}' for number in range(300)]


def test_a_program_that_handles_sigterm_keeps_its_handler(tmp_path: Path) -> None:
    assert run_program(PROGRAM_WITH_HANDLER, tmp_path).returncode == 7
    assert len(tools_in(tmp_path)) == 1


def test_a_second_sigterm_ends_a_process_whose_flush_hangs(tmp_path: Path) -> None:
    assert run_program(TWICE, tmp_path).returncode == -signal.SIGTERM
