"""The end of a process is held back within one deadline, whatever is flushed or closed, and how often."""

import subprocess
import sys
import textwrap
import weakref
from types import SimpleNamespace

import pytest

from rollbus.producers import process_hooks


class SlowRecorder:
    """Uses up all the time that it is given."""

    def __init__(self, clock: list[float]) -> None:
        self.clock = clock

    def after_fork(self) -> None:
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
    import socket, time

    def hang(*arguments, **options):
        print("asked", flush=True)
        time.sleep(60)

    socket.getaddrinfo = hang
    import rollbus
    from rollbus.producers import process_hooks

    process_hooks.EXIT_DEADLINE_S = 0.5
    recorder = rollbus.init(bootstrap_servers="kafka.example:9092")
    with recorder.episode(task="t"):
        pass
"""


def test_a_name_server_that_does_not_answer_does_not_hold_the_process_back() -> None:
    script = [sys.executable, "-c", textwrap.dedent(NO_NAMES)]
    ended = subprocess.run(script, capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout.split()) == (0, ["asked"]), ended.stderr
