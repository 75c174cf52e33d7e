"""A session keeps its handle, serves one request at a time, and ends when it was idle too long."""

from dataclasses import dataclass, field

import pytest

from rollbus.local.clickhouse_errors import ClickHouseError
from rollbus.local.clickhouse_sessions import MOST_OF_READER, Sessions


@dataclass
class Handles:
    """Stands for the engine: handles are numbers."""

    opened: list[str] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)
    now: float = 0.0

    def open(self, user: str) -> int:
        self.opened.append(user)
        return len(self.opened) - 1

    def sessions(self) -> Sessions:
        return Sessions(self.open, self.closed.append, clock=lambda: self.now)


def test_a_session_keeps_its_handle_apart_from_other_users() -> None:
    handles = Handles()
    sessions = handles.sessions()
    found = []
    for user in ("default", "default", "readonly"):
        with sessions.checkout(user, "s", timeout_s=60) as session:
            found.append(session.handle)
    assert found == [0, 0, 1]
    sessions.close()
    assert handles.closed == [0, 1]


def test_a_second_request_at_the_same_time_is_refused() -> None:
    sessions = Handles().sessions()
    with sessions.checkout("default", "s", timeout_s=60):
        with pytest.raises(ClickHouseError) as caught, sessions.checkout("default", "s", timeout_s=60):
            pass
        assert caught.value.code == 373
    with sessions.checkout("default", "s", timeout_s=60):
        pass


def test_an_idle_session_ends_and_a_busy_one_does_not() -> None:
    handles = Handles()
    sessions = handles.sessions()
    with sessions.checkout("default", "busy", timeout_s=10):
        with sessions.checkout("default", "idle", timeout_s=10):
            pass
        handles.now = 11.0
        with sessions.checkout("default", "other", timeout_s=10):
            pass
        assert handles.closed == [1]
    with sessions.checkout("default", "busy", timeout_s=10) as session:
        assert session.handle == 0


def test_a_session_that_must_exist_and_does_not_is_refused() -> None:
    with (
        pytest.raises(ClickHouseError) as caught,
        Handles().sessions().checkout("default", "s", timeout_s=60, must_exist=True),
    ):
        pass
    assert caught.value.code == 372


def test_the_reader_cannot_fill_the_memory_with_sessions() -> None:
    handles = Handles()
    sessions = handles.sessions()
    for number in range(MOST_OF_READER + 3):
        handles.now += 1
        for user in ("default", "readonly"):
            with sessions.checkout(user, f"s{number}", timeout_s=3600):
                pass
    assert [handles.opened[closed] for closed in handles.closed] == ["readonly"] * 3
    assert handles.closed == [1, 3, 5], "the idlest first"
