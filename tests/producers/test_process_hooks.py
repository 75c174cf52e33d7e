"""The end of a process is held back within one deadline, whatever is flushed or closed, and how often."""

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
